// SPDX-License-Identifier: Apache-2.0
#include "episodic/mpi/mpi_group.hpp"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <limits>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

using Clock = std::chrono::steady_clock;

void check(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(std::string("group: ") + what + ": " +
              std::string(text, static_cast<std::size_t>(length)));
}

int count_of(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw DataError("group: a message of " + std::to_string(bytes) +
                    " bytes; MPI takes 2^31 - 1 at most: lower chunk");
  return static_cast<int>(bytes);
}

/// MPI from the first group of a process to its last one.
class Runtime {
 public:
  static std::shared_ptr<Runtime> get() {
    static std::mutex mutex;
    static std::weak_ptr<Runtime> running;
    const std::lock_guard lock(mutex);
    std::shared_ptr<Runtime> runtime = running.lock();
    if (!runtime) running = runtime = std::make_shared<Runtime>();
    return runtime;
  }

  Runtime() {
    int begun = 0, ended = 0;
    check(MPI_Initialized(&begun), "MPI_Initialized");
    check(MPI_Finalized(&ended), "MPI_Finalized");
    if (ended) throw Error("group: MPI has ended in this process and cannot start again");
    if (begun) return;
    int threads = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &threads), "MPI_Init_thread");
    ours_ = true;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  ~Runtime() {
    if (ours_ && !given_up_) MPI_Finalize();
  }
  void give_up() { given_up_ = true; }

 private:
  bool ours_ = false, given_up_ = false;
};

/// A communicator of its own, so that nobody else's messages are taken for the group's.
class Communicator {
 public:
  Communicator() {
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank);
    MPI_Comm_size(comm_, &size);
  }
  MPI_Comm get() const { return comm_; }
  void free() { MPI_Comm_free(&comm_); }

  int rank = 0, size = 1;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Between two looks whether something has come: gives the core away, at first for no time.
class Pause {
 public:
  void operator()() {
    constexpr int kYields = 2000;
    if (++looks_ < kYields)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  int looks_ = 0;
};

class MpiGroup final : public Group {
 public:
  MpiGroup(std::shared_ptr<Runtime> runtime, const Communicator& communicator,
           const GroupOptions& options)
      : Group(communicator.rank, communicator.size, options),
        runtime_(std::move(runtime)),
        communicator_(communicator),
        found_(static_cast<std::size_t>(communicator.size)) {}

  ~MpiGroup() override {
    constexpr auto kLast = std::chrono::seconds(2);  // for what tells the others why
    try {
      if (!flush(Clock::now() + std::min<Clock::duration>(timeout(), kLast)) || lost_rank() >= 0) {
        runtime_->give_up();
        return;
      }
    } catch (...) {
      runtime_->give_up();
      return;
    }
    if (!given_up()) communicator_.free();
  }

 protected:
  void send(int to, Kind kind, std::span<const std::byte> bytes) override {
    sent_.remove_if([](Sent& s) { return s.done(); });
    Sent& sent = sent_.emplace_back();
    sent.bytes.assign(bytes.begin(), bytes.end());
    check(MPI_Isend(sent.bytes.data(), count_of(bytes.size()), MPI_BYTE, to, static_cast<int>(kind),
                    communicator_.get(), &sent.request),
          "MPI_Isend");
  }

  std::optional<Incoming> wait(int from, Deadline until) override {
    Found& found = found_[static_cast<std::size_t>(from)];
    Pause pause;
    while (!found.there) {
      int there = 0;
      MPI_Status status;
      check(MPI_Improbe(from, MPI_ANY_TAG, communicator_.get(), &there, &found.message, &status),
            "MPI_Improbe");
      if (there) {
        int count = 0;
        MPI_Get_count(&status, MPI_BYTE, &count);
        found.there = true;
        found.incoming = {static_cast<Kind>(status.MPI_TAG), static_cast<std::size_t>(count)};
        break;
      }
      if (Clock::now() >= until) return std::nullopt;
      pause();
    }
    return found.incoming;
  }

  bool take(int from, std::span<std::byte> to, Deadline until) override {
    Found& found = found_[static_cast<std::size_t>(from)];
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Imrecv(to.data(), count_of(to.size()), MPI_BYTE, &found.message, &request),
          "MPI_Imrecv");
    found.there = false;
    if (done_by(request, until)) return true;
    MPI_Cancel(&request);
    return false;
  }

  bool flush(Deadline until) override {
    for (Sent& sent : sent_)
      if (!done_by(sent.request, until)) return false;
    sent_.clear();
    return true;
  }

 private:
  struct Sent {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;

    bool done() {
      int is = 0;
      check(MPI_Test(&request, &is, MPI_STATUS_IGNORE), "MPI_Test");
      return is != 0;
    }
  };
  struct Found {
    bool there = false;
    MPI_Message message = MPI_MESSAGE_NULL;
    Incoming incoming;
  };

  static bool done_by(MPI_Request& request, Deadline until) {
    Pause pause;
    while (true) {
      int is = 0;
      check(MPI_Test(&request, &is, MPI_STATUS_IGNORE), "MPI_Test");
      if (is) return true;
      if (Clock::now() >= until) return false;
      pause();
    }
  }

  std::shared_ptr<Runtime> runtime_;
  Communicator communicator_;
  std::list<Sent> sent_;
  std::vector<Found> found_;  // of each rank, what `wait` has seen
};

}  // namespace

std::shared_ptr<Group> make_mpi_group(const GroupOptions& options) {
  std::shared_ptr<Runtime> runtime = Runtime::get();
  return std::make_shared<MpiGroup>(std::move(runtime), Communicator(), options);
}

}  // namespace episodic
