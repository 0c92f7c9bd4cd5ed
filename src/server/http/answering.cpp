// SPDX-License-Identifier: Apache-2.0
#include "http/answering.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100};      // how often a waiting client is looked after
constexpr milliseconds kTurn{5};        // that several choices wait for each other
constexpr milliseconds kProbe{10'000};  // a client that may have gone

bool all_ended(const Asked& asked) {
  return std::all_of(asked.choices.begin(), asked.choices.end(),
                     [](const auto& choice) { return choice->ended(); });
}

/// The first reason that one of them was given up for.
GivenUp given_up(const Asked& asked) {
  for (const auto& choice : asked.choices)
    if (const GivenUp why = choice->given_up(); why != GivenUp::no) return why;
  return GivenUp::no;
}

void withdraw(Asked& asked, GivenUp why) {
  for (const auto& choice : asked.choices)
    if (!choice->ended()) asked.scheduler.withdraw(*choice, why);
}

/// A body of server-sent events, as long as `write` makes them.
void send_events(const Exchange& exchange, httplib::Response& response,
                 const httplib::ContentProviderWithoutLength& write) {
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");  // a proxy hands on what it has
  if (exchange.head.minor == 1)
    response.set_chunked_content_provider("text/event-stream", write);
  else  // has no chunks: the answer ends with the connection
    response.set_content_provider("text/event-stream", write);
}

}  // namespace

Asked::~Asked() {
  withdraw(*this, GivenUp::client_left);
  if (!writer) return;
  for (const auto& choice : choices)  // its sequence is being stepped until then
    while (!choice->wait(milliseconds(1000)).ended) {
    }
}

std::function<bool()> looking_after(Connection& connection) {
  return [&connection, probed = Clock::time_point{}]() mutable {
    Connection::Client client = connection.client();
    if (client == Connection::Client::quiet && Clock::now() - probed > kProbe) {
      probed = Clock::now();
      connection.probe();
      client = connection.client();
    }
    return client != Connection::Client::gone;
  };
}

std::string given_up_message(GivenUp why) {
  switch (why) {
    case GivenUp::overdue:
      return "the answer was not complete in time (the server's limit of time)";
    case GivenUp::client_slow:
      return "the answer was not taken in time";
    default:
      return "the server is going down";
  }
}

std::shared_ptr<Asked> Answering::ask(Scheduler::Place place, Job job,
                                      std::unique_ptr<AnswerForm> form, std::size_t choices) {
  auto asked = std::make_shared<Asked>(service_.scheduler());
  asked->form = std::move(form);
  asked->writer = std::move(job.writer);
  for (std::size_t i = 0; i < choices; ++i) {
    Work work = job.work;
    work.options.sampling.seed += i;
    asked->choices.push_back(asked->scheduler.submit(
        i == 0 ? std::move(place) : asked->scheduler.take_place(), std::move(work)));
  }
  return asked;
}

void Answering::log(const std::string& path, const std::string& what) {
  if (!options_.log) return;
  const std::lock_guard lock(log_mutex_);
  options_.log(fmt::format("{}: {}", printable(path), what));
}

void Answering::log_answer(const std::string& path, const Asked& asked) {
  if (!options_.log) return;
  std::int64_t prompt = 0, reused = 0;
  std::size_t written = 0;
  double waited = 0;
  bool whole = given_up(asked) == GivenUp::no;
  for (const auto& choice : asked.choices) {
    prompt = choice->work().prompt_tokens();
    waited = std::max(waited, choice->waited());
    if (!choice->ended() || choice->given_up() != GivenUp::no) continue;
    const Served& served = choice->served();
    reused = served.reused_tokens;
    written += served.result.ids.size();
    whole = whole && served.result.finish != FinishReason::cancelled;
  }
  const std::chrono::duration<double> seconds = Clock::now() - asked.began;
  log(path,
      fmt::format("{} tokens of prompt, {} of them read before; {} written, {:.2f} s, {:.2f} "
                  "of them waiting{}",
                  prompt, reused, written, seconds.count(), waited, whole ? "" : ", given up"));
}

std::vector<Served> Answering::finish(Asked& asked) {
  std::vector<Served> all;
  for (const auto& choice : asked.choices) all.push_back(choice->served());
  if (asked.writer) {
    asked.writer->commit();
    asked.writer = nullptr;  // the next request may have the memory before this client has read
  }
  if (asked.done) asked.done(all);
  return all;
}

/// Looks after the client while its request is on the way. \param probe sends it what means
/// nothing \return false: it has gone, or nobody waits for the answer any more
template <class Probe>
bool Answering::still_wanted(Connection& connection, Asked& asked, Clock::time_point& probed,
                             const Probe& probe) {
  for (const auto& choice : asked.choices)
    if (!choice->wanted()) {  // overdue, or the server stops
      withdraw(asked, choice->given_up());
      return false;
    }
  Connection::Client client = connection.client();
  if (client == Connection::Client::quiet && Clock::now() - probed > kProbe) {
    probed = Clock::now();
    probe();
    client = connection.client();
  }
  if (client != Connection::Client::gone) return true;
  withdraw(asked, GivenUp::client_left);
  return false;
}

void Answering::answer_whole(Exchange& exchange, const std::shared_ptr<Asked>& asked,
                             httplib::Response& response) {
  Connection& connection = exchange.connection;
  Clock::time_point probed{};
  for (const auto& choice : asked->choices)
    while (!choice->wait(kLook).ended &&
           still_wanted(connection, *asked, probed, [&] { connection.probe(); })) {
    }
  if (!all_ended(*asked) || given_up(*asked) != GivenUp::no) {
    log_answer(exchange.head.path, *asked);
    response.status = 503;
    response.set_content(error_body_at(exchange.head.path, 503, given_up_message(given_up(*asked))),
                         "application/json");
    response.set_header("Retry-After", std::to_string(service_.scheduler().seconds_to_wait()));
    return;
  }
  const std::vector<Served> served = finish(*asked);
  log_answer(exchange.head.path, *asked);
  response.set_content(text_of(asked->form->whole(served)), "application/json");
}

void Answering::answer_stream(Exchange& exchange, std::shared_ptr<Asked> asked,
                              httplib::Response& response) {
  const auto write = [this, asked = std::move(asked), &exchange](std::size_t,
                                                                 httplib::DataSink& sink) {
    return write_stream(exchange, *asked, sink);
  };
  send_events(exchange, response, write);
}

/// \return false where the answer breaks off: the connection then ends without the last chunk
bool Answering::write_stream(Exchange& exchange, Asked& asked, httplib::DataSink& sink) {
  Connection& connection = exchange.connection;
  AnswerForm& form = *asked.form;
  Clock::time_point probed{}, sent = Clock::now();
  const auto send = [&](const std::string& text) {
    if (text.empty()) return true;
    sent = Clock::now();
    return sink.write(text.data(), text.size());
  };
  const auto say_nothing = [&] { send(form.silence()); };
  bool taken = send(form.begin());
  std::vector<bool> ended(asked.choices.size());
  std::int64_t read = 0;
  for (std::size_t i = 0, left = ended.size(); left > 0 && taken; i = (i + 1) % ended.size()) {
    if (ended[i]) continue;
    InFlight& choice = *asked.choices[i];
    const InFlight::News news = choice.wait(ended.size() == 1 ? kLook : kTurn);
    if (all_ended(asked)) connection.begin_drain();  // from now on it waits for the client alone
    if (asked.progress && i == 0 && news.read > read) {
      read = news.read;
      taken = send(form.progress(read, choice.work().prompt_tokens()));
    }
    for (const Part& part : news.parts) {
      taken = taken && send(form.part(i, part));
      if (!taken || choice.given_up() != GivenUp::no) break;
    }
    if (!taken) withdraw(asked, GivenUp::client_left);
    if (news.ended) {
      ended[i] = true;
      --left;
    }
    if (left > 0 && (!taken || !still_wanted(connection, asked, probed, say_nothing))) break;
    if (left > 0 && Clock::now() - sent > options_.silence) say_nothing();
  }
  connection.begin_drain();
  const GivenUp why = given_up(asked);
  const bool whole = taken && all_ended(asked) && why == GivenUp::no;
  if (!whole) {
    log_answer(exchange.head.path, asked);
    if (!taken || why == GivenUp::client_left || why == GivenUp::client_slow) return false;
    send(form.failure(503, given_up_message(why)));
  } else {
    try {
      const std::vector<Served> served = finish(asked);
      log_answer(exchange.head.path, asked);
      for (std::size_t i = 0; i < served.size(); ++i) send(form.end_of_choice(i, served[i]));
      send(form.end(served));
    } catch (const std::exception& e) {  // the status has been sent
      send(form.failure(500, printable(e.what(), 2000)));
    }
  }
  sink.done();
  return true;
}

void Answering::stream(Exchange& exchange, httplib::Response& response,
                       std::function<bool(std::string&)> next) {
  const auto write = [this, next = std::move(next), &exchange](std::size_t,
                                                               httplib::DataSink& sink) {
    Clock::time_point sent = Clock::now();
    for (bool more = true; more;) {
      std::string event;
      more = next(event);
      if (event.empty() && more && Clock::now() - sent > options_.silence) event = ": waiting\n\n";
      if (event.empty()) {
        if (exchange.connection.client() == Connection::Client::gone) return false;
        continue;
      }
      sent = Clock::now();
      if (!sink.write(event.data(), event.size())) return false;
    }
    exchange.connection.begin_drain();
    sink.done();
    return true;
  };
  send_events(exchange, response, write);
}

}  // namespace episodic::server
