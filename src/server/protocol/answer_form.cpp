// SPDX-License-Identifier: Apache-2.0
#include "protocol/answer_form.hpp"

#include "protocol/messages_form.hpp"

namespace episodic::server {

std::string event_of(const Json& data, const char* name) {
  std::string event;
  if (name) event = std::string("event: ") + name + "\n";
  return event + "data: " + text_of(data) + "\n\n";
}

std::string error_body(int status, const std::string& message, const std::string& parameter,
                       const std::string& code) {
  const char* type = status == 429   ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                     : status == 401 ? "authentication_error"
                     : status == 403 ? "permission_error"
                                     : "invalid_request_error";
  const Json error{{"message", message},
                   {"type", type},
                   {"param", parameter.empty() ? Json() : Json(parameter)},
                   {"code", code.empty() ? Json() : Json(code)}};
  return text_of({{"error", error}});
}

std::string error_body_at(std::string_view path, int status, const std::string& message,
                          const std::string& parameter, const std::string& code) {
  return is_messages_path(path) ? messages_error_body(status, message)
                                : error_body(status, message, parameter, code);
}

void add_recalled(Json& to, const Served& served) {
  Json all = Json::array();
  double total = 0;
  for (const RecalledEvent& e : served.recalled) total += e.attention;
  for (std::size_t i = 0; i < served.recalled.size(); ++i) {
    const RecalledEvent& e = served.recalled[i];
    Json one{{"event", e.event},    {"start", e.tokens.start},
             {"end", e.tokens.end}, {"text", served.recalled_texts[i]},
             {"layers", e.layers},  {"rank", e.rank}};
    if (total > 0) one["attention"] = e.attention / total;
    all.push_back(std::move(one));
  }
  to["recalled"] = std::move(all);
  for (const Passage& p : served.passages)
    to["passages"].push_back({{"start", p.tokens.start},
                              {"end", p.tokens.end},
                              {"text", p.text},
                              {"score", p.score},
                              {"gain", p.gain},
                              {"lead", p.lead}});
  if (!served.passages.empty()) to["passages_only"] = served.passages_only;
}

}  // namespace episodic::server
