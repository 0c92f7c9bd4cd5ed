// SPDX-License-Identifier: Apache-2.0
#include "base/append_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <set>

#include "base/unique_id.hpp"
#include "episodic/base/error.hpp"

namespace episodic::io {
namespace {

constexpr std::int64_t kLeastExtentBytes = std::int64_t{256} << 10;
constexpr std::int64_t kLongBytes = std::int64_t{64} << 20;  // copying it would take a while

bool is_full(int result) { return result == -ENOSPC || result == -EDQUOT; }

}  // namespace

std::string FileFormat::name(std::uint64_t id) const {
  return fmt::format("{}-{:016x}.{}", prefix, id, suffix);
}

File open_file(const Directory& folder, const FileFormat& format, const FileRef& ref) {
  File file = folder.open(format.kind, format.name(ref.id));
  const std::int64_t size = file.size();
  if (ref.bytes < format.header_bytes || size < ref.bytes)
    throw FileError(
        fmt::format("{}: {} bytes long, {} were committed; it is truncated: take it from a copy",
                    file.path().string(), size, ref.bytes));
  std::vector<std::byte> header(static_cast<std::size_t>(format.header_bytes));
  file.read(header, 0);
  if (const std::string fault = format.fault(ref.id, header); !fault.empty())
    throw FileError(fmt::format("{}: {}; take it from a copy", file.path().string(), fault));
  return file;
}

std::size_t first_to_merge(std::span<const std::int64_t> bytes, std::size_t most) {
  if (bytes.size() <= most) return bytes.size();
  std::int64_t behind = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  for (std::size_t i = 0; i + 1 < bytes.size(); ++i) {
    behind -= bytes[i];
    if (bytes[i] / 2 <= behind) return i;
  }
  return bytes.size();
}

void save_files(ByteWriter& to, std::span<const FileRef> files) {
  to.put(static_cast<std::uint64_t>(files.size()));
  for (const FileRef& f : files) {
    to.put(f.id);
    to.put(f.bytes);
  }
}

std::vector<FileRef> load_files(ByteReader& from) {
  const auto damaged = [&] {
    return FileError(from.where() + ": its list of files is impossible; the file is damaged");
  };
  const auto n = from.get<std::uint64_t>();
  if (n > from.left() / 16) throw damaged();  // before anything is reserved for it
  std::vector<FileRef> files(static_cast<std::size_t>(n));
  std::set<std::uint64_t> ids;
  for (FileRef& f : files) {
    f.id = from.get<std::uint64_t>();
    f.bytes = from.get<std::int64_t>();
    if (f.bytes < 0 || !ids.insert(f.id).second) throw damaged();
  }
  return files;
}

AppendFiles::AppendFiles(FileFormat format, Options options, Directory folder)
    : format_(std::move(format)),
      options_(std::move(options)),
      folder_(std::move(folder)),
      queue_(options_.queue_bytes, options_.gather, options_.written) {}

AppendFiles::~AppendFiles() {
  queue_.stop();
  if (!options_.keep) return;
  for (const auto& f : files_) {  // what no image names is of no use to anyone
    if (!f || !f->own) continue;
    if (f->frozen == 0)
      remove_name(*f);
    else if (f->allocated > f->frozen)
      folder_.calls().truncate(format_.kind, f->file.fd(), f->frozen);
  }
}

void AppendFiles::open(std::span<const FileRef> files, const Directory& folder) {
  for (const FileRef& ref : files) {
    auto f = std::make_unique<File>();
    f->id = ref.id;
    f->closed = true;
    f->end = f->frozen = ref.bytes;
    f->file = open_file(folder, format_, ref);
    std::int64_t size = f->file.size();
    // A crash leaves a tail that nothing names. The file may be another memory's too, or a hard
    // link to something else: what has another name is never cut.
    const std::string name = format_.name(ref.id);
    const auto counted = options_.counted.find(name);
    const std::int64_t end =
        counted == options_.counted.end() ? ref.bytes : std::max(ref.bytes, counted->second);
    if (options_.keep && size > end) {
      io::File writable = folder.open(format_.kind, name, O_RDWR);
      if (writable.links() == 1) {
        writable.truncate(end);
        size = end;
      }
    }
    if (options_.opened) options_.opened(*f);
    if (options_.keep) {
      f->allocated = round_up(size);
      f->overhead = options_.overhead;
      taken_ += f->allocated + f->overhead;
    }
    files_.push_back(std::move(f));
  }
  if (options_.keep) find_orphans();
}

/// Files in the folder that the image does not name: of commits that were not finished.
void AppendFiles::find_orphans() {
  const std::string like = format_.name(0);
  const std::size_t first = like.find('0'), last = like.rfind('0');  // of the digits
  std::set<std::string> known;
  for (const auto& f : files_) known.insert(format_.name(f->id));
  for (const std::string& name : folder_.names()) {
    const std::size_t other = name.find_first_not_of("0123456789abcdef", first);
    if (name.size() != like.size() || other != last + 1 || known.contains(name) ||
        name.compare(0, first, like, 0, first) != 0 ||
        name.compare(other, name.size(), like, other, like.size()) != 0)
      continue;
    const auto entry = folder_.look(name);
    orphans_.emplace_back(name, round_up(entry ? entry->bytes : 0));
    taken_ += orphans_.back().second;
  }
}

void AppendFiles::admit(std::int64_t bytes) {
  auto lock = queue_.lock();
  queue_.admit(lock, bytes);
}

AppendFiles::Place AppendFiles::place(std::int64_t bytes, Need need) {
  File* f = current_ == kNone ? nullptr : files_[current_].get();
  if (!f || f->closed || (f->end > format_.header_bytes && f->end + bytes > options_.roll_bytes)) {
    close_current();
    begin_file(bytes, need);
    f = files_[current_].get();
  }
  reserve(*f, round_up(f->end + bytes), need);
  const auto lock = queue_.lock();
  const Place place{current_, f->end};
  f->end += bytes;
  f->live += bytes;
  return place;
}

void AppendFiles::close_current() noexcept {
  if (current_ == kNone) return;
  File& f = *files_[current_];
  f.closed = true;
  shrink(f, round_up(f.end));
}

void AppendFiles::begin_file(std::int64_t bytes, const Need& need) {
  if (options_.most_bytes > 0 && taken_ + options_.overhead > options_.most_bytes) refuse(need);
  auto f = std::make_unique<File>();
  f->id = detail::unique_id();
  f->own = true;
  f->end = format_.header_bytes;
  const std::string name = format_.name(f->id);
  try {
    f->file = options_.keep ? folder_.create(format_.kind, name)
                            : folder_.create_unnamed(format_.kind, name);
    f->overhead = options_.overhead;
    taken_ += f->overhead;
    reserve(*f, round_up(f->end + bytes), need);
    f->file.write(format_.header(f->id), 0);
    if (options_.opened) options_.opened(*f);
    const auto lock = queue_.lock();
    files_.push_back(std::move(f));
    current_ = files_.size() - 1;
  } catch (...) {
    if (f && f->file) {
      remove_name(*f);
      taken_ -= f->allocated + f->overhead;
    }
    throw;
  }
}

/// Takes room from the file system up to `end`, and ahead of it what is likely to be needed.
void AppendFiles::reserve(File& f, std::int64_t end, const Need& need) {
  if (!options_.reserve || end <= f.allocated) return;
  const std::int64_t page = options_.page, needed = end - f.allocated;
  std::int64_t extent = std::max(needed, std::clamp(f.allocated, kLeastExtentBytes, kExtentBytes));
  extent = std::max(needed, std::min(extent, round_up(options_.roll_bytes) - f.allocated));
  if (options_.most_bytes > 0) {
    const std::int64_t left = (options_.most_bytes - taken_) / page * page;
    if (needed > left) refuse(need);
    // A sixteenth of a small budget at most lies idle.
    extent = std::max(needed, std::min({extent, left, options_.most_bytes / 16 / page * page}));
  }
  Syscalls& calls = folder_.calls();
  int result = calls.allocate(format_.kind, f.file.fd(), f.allocated, extent);
  if (is_full(result) && extent > needed) {
    calls.truncate(format_.kind, f.file.fd(), f.allocated);
    extent = needed;
    result = calls.allocate(format_.kind, f.file.fd(), f.allocated, extent);
  }
  if (result < 0) {
    calls.truncate(format_.kind, f.file.fd(), f.allocated);
    fail(-result, f.file.path(),
         fmt::format("reserve {} bytes for {} {}", need.bytes, need.parts, options_.unit),
         is_full(result) ? fmt::format("free at least {} bytes on its file system; what was stored "
                                       "stays",
                                       need.bytes)
                         : "");
  }
  f.allocated += extent;
  taken_ += extent;
}

void AppendFiles::refuse(const Need& need) const {
  // At worst each of them needs a file.
  const std::int64_t missing = need.bytes + need.parts * (round_up(format_.header_bytes) +
                                                          options_.page + options_.overhead);
  throw BudgetError(fmt::format(
      "disk_bytes = {} for the files {}-*.{} is used up ({} bytes taken) and {} more bytes are "
      "needed for {} {}; set disk_bytes to at least {} (0: no bound)",
      options_.most_bytes, format_.prefix, format_.suffix, taken_, missing, need.parts,
      options_.unit, taken_ + missing));
}

WriteQueue::Ready AppendFiles::make(std::int64_t bytes) {
  WriteQueue::Ready one(1);
  one.front().own.resize(static_cast<std::size_t>(bytes));
  one.front().bytes = one.front().own;
  return one;
}

void AppendFiles::write(const Place& place, WriteQueue::Ready one) noexcept {
  write(queue_.lock(), place, std::move(one));
}

void AppendFiles::write(const WriteQueue::Lock& lock, const Place& place,
                        WriteQueue::Ready one) noexcept {
  one.front().file = &files_[place.file]->file;
  one.front().offset = place.offset;
  queue_.push(lock, std::move(one));
}

void AppendFiles::write_now(const Place& place, std::span<const std::byte> bytes) {
  files_[place.file]->file.write(bytes, place.offset);
}

void AppendFiles::reserve_holes(const WriteQueue::Lock&, std::size_t n) {
  if (holes_.size() + n > holes_.capacity())
    holes_.reserve(std::max(holes_.size() + n, 2 * holes_.capacity()));
}

void AppendFiles::read(const Place& place, std::span<std::byte> to) const {
  const io::File* file = nullptr;
  {
    const auto lock = queue_.lock();
    file = &files_[place.file]->file;
    if (queue_.copy(lock, *file, place.offset, to)) return;
  }
  file->read(to, place.offset);
}

void AppendFiles::give_back(WriteQueue::Lock& lock, const Place& place,
                            std::int64_t bytes) noexcept {
  File& f = *files_[place.file];
  f.live -= bytes;
  if (!f.own || place.offset < f.frozen) return;
  if (f.end == place.offset + bytes) {
    queue_.withdraw(lock, f.file, place.offset, bytes);
    f.end = place.offset;
  } else if (options_.zero_holes && options_.keep) {
    holes_.push_back({place.file, place.offset, bytes});
  }
}

AppendFiles::Mark AppendFiles::mark() const {
  if (current_ == kNone) return {files_.size(), current_};
  return {files_.size(), current_, files_[current_]->closed, files_[current_]->allocated};
}

void AppendFiles::cut(WriteQueue::Lock& lock, const Mark& mark) noexcept {
  while (files_.size() > mark.files) {
    remove_name(*files_.back());
    forget_file(lock, files_.size() - 1);
    files_.pop_back();
  }
  current_ = mark.current;
  if (current_ == kNone) return;
  File& f = *files_[current_];
  f.closed = mark.closed;
  // A file that was rolled has lost its reserve, one that grew has got more of it.
  shrink(f, std::min(mark.allocated, f.allocated));
}

void AppendFiles::trim(std::size_t file) noexcept {
  File& f = *files_[file];
  if (f.own && f.closed) shrink(f, round_up(f.end));
}

/// Gives back what a file of our own has reserved beyond `bytes`. A hint: a refusal costs room.
void AppendFiles::shrink(File& f, std::int64_t bytes) noexcept {
  if (f.allocated <= bytes) return;
  if (folder_.calls().truncate(format_.kind, f.file.fd(), bytes) < 0) return;
  taken_ -= f.allocated - bytes;
  f.allocated = bytes;
}

bool AppendFiles::remove_name(const File& f) noexcept {
  if (!options_.keep) return true;
  try {
    return folder_.remove(format_.kind, format_.name(f.id)) >= 0;
  } catch (...) {  // no memory for the name
    return false;
  }
}

void AppendFiles::forget_file(WriteQueue::Lock& lock, std::size_t file) noexcept {
  File& f = *files_[file];
  queue_.withdraw(lock, f.file, 0, std::numeric_limits<std::int64_t>::max());
  std::erase_if(holes_, [&](const Hole& h) { return h.file == file; });
  taken_ -= f.allocated + f.overhead;
  files_[file].reset();
  if (current_ == file) current_ = kNone;
}

void AppendFiles::release_empty(WriteQueue::Lock& lock) noexcept {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (!files_[i]) continue;
    File& f = *files_[i];
    if (!f.own || f.live > 0 || f.frozen > 0) continue;
    if (i == current_ && !f.closed) {  // begin it anew
      queue_.withdraw(lock, f.file, 0, std::numeric_limits<std::int64_t>::max());
      std::erase_if(holes_, [&](const Hole& h) { return h.file == i; });
      f.end = format_.header_bytes;
    } else if (remove_name(f)) {
      forget_file(lock, i);
    }
  }
}

void AppendFiles::check_names() const {
  for (const auto& f : files_) {
    if (!f || f->live == 0) continue;
    const std::string name = format_.name(f->id);
    const auto refuse = [&](const std::string& what) {
      throw FileError(
          fmt::format("{}: {} while it was in use; put it back, or take the folder from a copy",
                      (folder_.path() / name).string(), what));
    };
    const auto found = folder_.look(name);
    if (!found) refuse("was removed");
    const Entry open = f->file.look();
    if (found->same_file(open)) {
      // What is reserved is there, and a cut file may have grown again, with a hole in it.
      if (open.bytes < std::max(f->frozen, f->own ? f->allocated : 0))
        refuse(fmt::format("was cut to {} bytes", open.bytes));
    } else if (f->own) {
      refuse("was replaced by another file");
    } else {  // a copy, perhaps
      open_file(folder_, format_, {f->id, f->end});
    }
  }
}

void AppendFiles::sync() {
  if (options_.keep) check_names();
  {
    auto lock = queue_.lock();
    queue_.drain(lock);
    release_empty(lock);
  }
  if (!options_.keep) return;
  bool names = false;
  const auto changed = [](const std::unique_ptr<File>& f) {
    return f && f->own && f->live > 0 && f->end > f->frozen;
  };
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (changed(files_[i])) {
      freeze(i);
      names |= files_[i]->frozen == 0;
    }
  if (names) folder_.sync();
  for (const auto& f : files_)
    if (changed(f)) f->frozen = f->end;
}

/// Makes a file of our own durable up to its end, rounded up to a page.
void AppendFiles::freeze(std::size_t file) {
  static constexpr std::byte kZeros[4096] = {};
  File& f = *files_[file];
  const auto zero = [&](std::int64_t offset, std::int64_t bytes) {
    for (std::int64_t n; bytes > 0; offset += n, bytes -= n) {
      n = std::min<std::int64_t>(bytes, sizeof kZeros);
      f.file.write(std::span(kZeros).first(static_cast<std::size_t>(n)), offset);
    }
  };
  for (const Hole& hole : holes_)
    if (hole.file == file) zero(hole.offset, hole.bytes);
  const std::int64_t end = round_up(f.end);
  zero(f.end, end - f.end);
  shrink(f, end);
  f.file.sync();
  std::erase_if(holes_, [&](const Hole& h) { return h.file == file; });
  f.end = end;
}

std::vector<FileRef> AppendFiles::refs(std::vector<std::int32_t>& number) const {
  std::vector<FileRef> refs;
  number.assign(files_.size(), -1);
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (files_[i] && files_[i]->live > 0) {
      number[i] = static_cast<std::int32_t>(refs.size());
      refs.push_back({files_[i]->id, files_[i]->end});
    }
  return refs;
}

void AppendFiles::committed(std::span<const FileRef> named) {
  if (!options_.keep) return;
  int failed = 0;
  std::string which;
  const auto remove = [&](const std::string& name) {
    const int r = folder_.remove(format_.kind, name);
    if (r >= 0 || r == -ENOENT) return true;
    failed = -r;
    which = name;
    return false;
  };
  auto lock = queue_.lock();
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const File* f = files_[i].get();
    if (f && f->live == 0 && f->frozen > 0 &&
        std::none_of(named.begin(), named.end(),
                     [&](const FileRef& ref) { return ref.id == f->id; }) &&
        remove(format_.name(f->id)))
      forget_file(lock, i);
  }
  std::erase_if(orphans_, [&](const auto& orphan) {
    if (!remove(orphan.first)) return false;
    taken_ -= orphan.second;
    return true;
  });
  if (failed != 0)
    fail(failed, folder_.path() / which, "remove it",
         "it is not needed any more; the next commit tries again");
}

std::vector<std::size_t> AppendFiles::to_merge(std::size_t most) const {
  std::vector<std::size_t> files;
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (!files_[i] || files_[i]->live == 0 ||
        files_[i]->end > std::min(kLongBytes, options_.roll_bytes / 2))
      continue;
    files.push_back(i);
    bytes.push_back(files_[i]->end);
  }
  files.erase(files.begin(),
              files.begin() + static_cast<std::ptrdiff_t>(first_to_merge(bytes, most)));
  return files;
}

double AppendFiles::dead_share(std::size_t file) const {
  const File& f = *files_[file];
  const auto all = static_cast<double>(f.end - format_.header_bytes);
  return all > 0 ? (all - static_cast<double>(f.live)) / all : 0.0;
}

std::filesystem::path AppendFiles::path(std::size_t file) const {
  const File& f = *files_[file];
  return f.own ? folder_.path() / format_.name(f.id) : f.file.path();
}

}  // namespace episodic::io
