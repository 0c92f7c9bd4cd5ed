// SPDX-License-Identifier: Apache-2.0
#pragma once
// A job done for a client: waited for, looked after, written in its protocol's form.

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "episodic/server/http_server.hpp"
#include "http/gate.hpp"
#include "protocol/answer_form.hpp"

namespace episodic::server {

/// One request's choices on their way, as their client's thread holds them: gone with the client.
struct Asked {
  Scheduler& scheduler;
  std::vector<std::shared_ptr<InFlight>> choices;
  std::shared_ptr<MemoryWriter> writer;  ///< committed once all are whole; may be null
  std::unique_ptr<AnswerForm> form;
  bool progress = false;  ///< of a stream: tells how much of the prompt is read
  /// Called once the answer is whole and committed, before its client hears of the end.
  std::function<void(std::span<const Served>)> done;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();

  explicit Asked(Scheduler& s) : scheduler(s) {}
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  ~Asked();
};

class Answering {
 public:
  Answering(Service& service, const ServerOptions& options)
      : service_(service), options_(options) {}

  /// Hands a job to the scheduler. \param choices answers to the same prompt, with seeds of their
  /// own
  std::shared_ptr<Asked> ask(Scheduler::Place place, Job job, std::unique_ptr<AnswerForm> form,
                             std::size_t choices = 1);
  /// Waits, and answers with the form's whole.
  void answer_whole(Exchange& exchange, const std::shared_ptr<Asked>& asked,
                    httplib::Response& response);
  /// Answers with a stream of events.
  void answer_stream(Exchange& exchange, std::shared_ptr<Asked> asked, httplib::Response& response);
  /// A stream of events that `write` makes, one after the other; empty: nothing yet, which says
  /// nothing to the client now and then. \param write false: that was the last one
  void stream(Exchange& exchange, httplib::Response& response,
              std::function<bool(std::string& event)> write);

  /// A line of the log. \param what the request did, behind its path
  void log(const std::string& path, const std::string& what);

 private:
  template <class Probe>
  bool still_wanted(Connection& connection, Asked& asked,
                    std::chrono::steady_clock::time_point& probed, const Probe& probe);
  bool write_stream(Exchange& exchange, Asked& asked, httplib::DataSink& sink);
  void log_answer(const std::string& path, const Asked& asked);
  /// Commits, and gives what was served. \throws what ended a choice, or the commit
  std::vector<Served> finish(Asked& asked);

  Service& service_;
  const ServerOptions& options_;
  std::mutex log_mutex_;
};

/// Asked now and then before there is an answer: whether its client is still there.
/// \param connection must outlive it
std::function<bool()> looking_after(Connection& connection);

/// Why an answer is not complete, to the client that it was for.
std::string given_up_message(GivenUp why);

}  // namespace episodic::server
