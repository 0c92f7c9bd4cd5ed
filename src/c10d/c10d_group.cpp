// SPDX-License-Identifier: Apache-2.0
#include "episodic/c10d/c10d_group.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <list>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kTag = 0;

/// What comes before each message: its kind and its bytes.
using Header = std::array<std::int64_t, 2>;

at::Tensor tensor_of(std::span<const std::byte> bytes) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

/// One line of what torch says.
Error error_of(const char* what, const std::exception& e) {
  const std::string text = e.what();
  return Error(std::string("group: ") + what + ": " + text.substr(0, text.find('\n')));
}

class C10dGroup final : public Group {
 public:
  C10dGroup(c10::intrusive_ptr<c10d::ProcessGroup> processes, const GroupOptions& options)
      : Group(processes->getRank(), processes->getSize(), options),
        processes_(std::move(processes)),
        expected_(static_cast<std::size_t>(size())) {}

  ~C10dGroup() override {
    constexpr auto kLast = std::chrono::seconds(2);  // for what tells the others why
    try {
      flush(Clock::now() + std::min<Clock::duration>(timeout(), kLast));
    } catch (...) {  // nobody is left who could be told
    }
  }

 protected:
  void send(int to, Kind kind, std::span<const std::byte> bytes) override {
    const Header header{static_cast<std::int64_t>(kind), static_cast<std::int64_t>(bytes.size())};
    begin_send(to, tensor_of(std::as_bytes(std::span(header))));
    if (!bytes.empty()) begin_send(to, tensor_of(bytes));
  }

  std::optional<Incoming> wait(int from, Deadline until) override {
    Expected& expected = expected_[static_cast<std::size_t>(from)];
    if (!expected.work) {
      expected.header = at::empty({static_cast<std::int64_t>(sizeof(Header))}, at::kByte);
      expected.work = begin_receive(from, expected.header);
    }
    if (!expected.there && !done_by(*expected.work, until, "receive")) return std::nullopt;
    expected.there = true;
    Header header{};
    std::memcpy(header.data(), expected.header.data_ptr(), sizeof header);
    return Incoming{static_cast<Kind>(header[0]), static_cast<std::size_t>(header[1])};
  }

  bool take(int from, std::span<std::byte> to, Deadline until) override {
    expected_[static_cast<std::size_t>(from)] = {};
    if (to.empty()) return true;
    const at::Tensor bytes = at::empty({static_cast<std::int64_t>(to.size())}, at::kByte);
    if (!done_by(*begin_receive(from, bytes), until, "receive")) return false;
    std::memcpy(to.data(), bytes.data_ptr(), to.size());
    return true;
  }

  std::optional<int> flush(Deadline until) override {
    for (Sent& sent : sent_)
      if (!done_by(*sent.work, until, "send")) return sent.to;
    sent_.clear();
    return std::nullopt;
  }

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  struct Sent {
    int to = 0;
    at::Tensor bytes;
    Work work;
  };
  /// The header of a rank's next message.
  struct Expected {
    at::Tensor header;
    Work work;
    bool there = false;
  };

  void begin_send(int to, at::Tensor bytes) {
    sent_.remove_if([](Sent& s) { return s.work->isCompleted(); });
    std::vector<at::Tensor> tensors{bytes};
    try {
      sent_.push_back({to, std::move(bytes), processes_->send(tensors, to, kTag)});
    } catch (const std::exception& e) {
      throw error_of("send", e);
    }
  }

  Work begin_receive(int from, const at::Tensor& bytes) {
    std::vector<at::Tensor> tensors{bytes};
    try {
      return processes_->recv(tensors, from, kTag);
    } catch (const std::exception& e) {
      throw error_of("receive", e);
    }
  }

  /// \return false where it is not done by then
  static bool done_by(c10d::Work& work, Deadline until, const char* what) {
    // Of no milliseconds torch would wait for ever.
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    try {
      work.wait(std::max(left, milliseconds(1)));
      return true;
    } catch (const std::exception& e) {
      if (Clock::now() >= until) return false;
      throw error_of(what, e);
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroup> processes_;
  std::list<Sent> sent_;
  std::vector<Expected> expected_;
};

}  // namespace

std::shared_ptr<Group> make_c10d_group(c10::intrusive_ptr<c10d::ProcessGroup> processes,
                                       const GroupOptions& options) {
  if (!processes) throw ConfigError("make_c10d_group: the process group is null");
  return std::make_shared<C10dGroup>(std::move(processes), options);
}

}  // namespace episodic
