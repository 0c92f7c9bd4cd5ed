// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API, and its conversations.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/conversation.hpp"
#include "http/routes.hpp"
#include "protocol/fields.hpp"
#include "protocol/responses_form.hpp"
#include "protocol/responses_request.hpp"

namespace episodic::server {
namespace {

constexpr const char* kNothingKept =
    "this server keeps no responses and no conversations; it was started without a folder for "
    "memories";

Conversations& conversations_of(RouteContext& context, const char* field, int status) {
  if (context.conversations) return *context.conversations;
  throw RequestError(kNothingKept, field, status);
}

Json parsed_record(const std::string& record) {
  JsonLimits limits;
  limits.depth = 64;
  limits.bytes = record.size();
  return parse_ordered(record, "the record", limits);
}

// -- a response -----------------------------------------------------------------------------------

/// A response on its way, and what becomes of it.
struct Response {
  std::shared_ptr<Turn> turn;  ///< null where the server keeps none
  std::shared_ptr<StartingPoint> start;
  std::optional<Conversation> talk;
  Json input;         ///< items of the request
  Json conversation;  ///< record of the conversation that it is added to; null: of none
  Json tools;         ///< that the model knows once the answer is whole

  /// Keeps it, once the answer is whole.
  void finish(const Json& response) {
    if (!turn) return;
    talk->answered(answer_of_items(response["output"]));
    if (!conversation.is_null()) {
      Json& items = conversation["items"];
      const Json& said = input;
      for (const Json* more : {&said, &response["output"]})
        items.insert(items.end(), more->begin(), more->end());
      conversation["read"] = items.size();
      conversation["tools"] = tools;
    }
    turn->finish(talk->messages(),
                 text_of({{"response", response}, {"input", input}, {"tools", tools}}),
                 conversation.is_null() ? std::string() : text_of(conversation));
  }
};

/// Where it begins.
void begin(RouteContext& context, const ResponsesRequest& request, const std::string* memory,
           Response& response, ResponsesForm::Head& head) {
  TurnStart start = request.start;
  if (memory) start.default_memory = *memory;
  head.previous = start.previous;
  head.conversation = start.conversation;
  if (!context.conversations) {
    if (!start.previous.empty()) conversations_of(context, "previous_response_id", 404);
    if (!start.conversation.empty()) conversations_of(context, "conversation", 404);
    if (request.store.value_or(false)) conversations_of(context, "store", 400);
    head.id = Conversations::new_id("resp");
    response.start =
        context.service.start(start.memory.empty() ? start.default_memory : start.memory);
    return;
  }
  start.store = request.store.value_or(true);
  response.turn = context.conversations->begin(start);
  head.id = response.turn->id();
  head.store = start.store;
  if (!start.conversation.empty())
    response.conversation = parsed_record(response.turn->conversation_record());
  const Json& before = !start.previous.empty() ? parsed_record(response.turn->previous_record())
                                               : response.conversation;
  if (before.is_object()) response.tools = before.value("tools", Json::array());
}

/// What the new turn says: what waits in the conversation, and the request's own.
std::vector<ChatMessage> turn_of(const ResponsesRequest& request, const Response& response) {
  Json items = Json::array();
  if (!response.conversation.is_null()) {
    const Json& all = response.conversation.at("items");
    items.insert(items.end(), all.begin() + response.conversation.at("read").get<int>(), all.end());
  }
  items.insert(items.end(), request.input.begin(), request.input.end());
  static const std::vector<ChatMessage> nothing;
  const auto& history = response.turn ? response.turn->history() : nothing;
  std::vector<ChatMessage> turn = messages_of_items(items);
  name_results(turn, history);
  if (turn.empty()) Fields::wrong("input", "is missing: there is nothing to answer");
  if (turn.back().role == "assistant" || turn.back().role == "system")
    Fields::wrong("input",
                  "must end with a user's message or with what a function put out, which is "
                  "answered");
  if (request.instructions.empty()) return turn;
  const auto last = std::find_if(history.rbegin(), history.rend(),
                                 [](const ChatMessage& m) { return m.role == "system"; });
  if (last == history.rend() || last->content != request.instructions) {  // else read already
    // results stand right behind their calls
    const auto at = std::find_if(turn.begin(), turn.end(),
                                 [](const ChatMessage& m) { return m.role != "tool"; });
    turn.insert(at, {"system", request.instructions});
  }
  return turn;
}

/// \throws RequestError for a message that the model would see nothing of
void require_shown(const Conversation& talk, const Request& turn, bool instructed) {
  try {
    const auto hidden = talk.hidden(turn.messages, turn.tools);
    if (!hidden) return;
    const bool system = turn.messages[*hidden].role == "system";
    Fields::wrong(
        system && instructed ? "instructions" : "input",
        system ? "cannot be read here: the model's chat format shows nothing of a system's message "
                 "at this place; begin a new conversation with it"
               : "has what a function put out, of which the model's chat format shows nothing; put "
                 "it into a user's message");
  } catch (const Error& e) {
    throw RequestError(e.what(), "input");
  }
}

const ChatTemplate& template_of(const Service& service) {
  try {
    return service.chat_template();
  } catch (const RequestError& e) {
    throw RequestError(e.what(), "input");
  }
}

/// The conversation so far, as it goes on.
Conversation talk_of(RouteContext& context, const Response& response, const Request& turn) {
  const ChatTemplate& chat = template_of(context.service);
  const Turn* kept = response.turn.get();
  const std::int64_t before = kept ? kept->tokens() : response.start->tokens();
  ConversationOptions options{
      .variables = turn.variables, .goes_on = before > 0, .changed = ChangedTurns::keep};
  std::vector<ChatMessage> history = kept ? kept->history() : std::vector<ChatMessage>();
  if (!response.tools.empty()) options.tools = response_tools_of(response.tools.dump());
  const auto calls = [](const ChatMessage& m) { return m.role == "tool" || !m.fields.empty(); };
  if (!turn.tools.empty() || !options.tools.empty() || std::ranges::any_of(history, calls) ||
      std::ranges::any_of(turn.messages, calls))
    options.calls = context.service.tool_call_format();
  return {chat, context.service.model().tokenizer(), std::move(options), std::move(history)};
}

void respond(RouteContext& context, Exchange& exchange, httplib::Response& answer) {
  Scheduler::Place place = context.service.scheduler().take_place();
  ResponsesRequest request = parse_responses_request(exchange.body, context.options.defaults);
  exchange.body = {};
  exchange.connection.release_body();
  const auto response = std::make_shared<Response>();
  ResponsesForm::Head head;
  head.model = context.options.model_name;
  head.created = static_cast<std::int64_t>(std::time(nullptr));
  head.recall = request.recall;
  head.said = std::move(request.said);
  if (request.options.logprobs >= 0)
    head.logprobs = TokenTexts(context.service.tokens(), context.service.model().tokenizer());
  begin(context, request, exchange.head.find("x-episodic-memory"), *response, head);
  Request turn;
  turn.messages = turn_of(request, *response);
  turn.variables = std::move(request.variables);
  turn.options = std::move(request.options);
  turn.format = std::move(request.format);
  turn.tool_choice = std::move(request.tool_choice);
  if (turn.tool_choice.kind != ToolChoice::Kind::none) turn.tools = std::move(request.tools);
  turn.parallel_tool_calls = request.parallel_tool_calls;
  turn.stream = request.stream;
  turn.recall = request.recall;
  response->talk.emplace(talk_of(context, *response, turn));
  require_shown(*response->talk, turn, !request.instructions.empty());
  response->input = std::move(request.input);
  if (!turn.tools.empty()) response->tools = head.said["tools"];
  Job job = context.service.prepare(turn, *response->talk, "input");
  job.work.start = response->turn ? response->turn->start() : response->start;
  if (response->turn) job.work.sequence = response->turn->sequence();
  head.tools = job.tools;
  auto form = std::make_unique<ResponsesForm>(std::move(head));
  ResponsesForm* const settles = form.get();
  const auto asked = context.answering.ask(std::move(place), std::move(job), std::move(form));
  asked->progress = request.progress;
  if (response->turn) response->turn->watch(asked->choices.front());
  asked->done = [response, settles](std::span<const Served> choices) {
    response->finish(settles->settle(choices.front()));
  };
  if (request.stream)
    context.answering.answer_stream(exchange, asked, answer);
  else
    context.answering.answer_whole(exchange, asked, answer);
}

// -- lists ----------------------------------------------------------------------------------------

/// A page of items: `limit` of them behind `after`, newest first unless `order` says otherwise.
Json page_of(Json items, const Target& target) {
  constexpr std::int64_t kMost = 100, kUsual = 20;
  const std::string order = target.value("order", "desc");
  if (order != "asc" && order != "desc") Fields::wrong("order", "must be \"asc\" or \"desc\"");
  if (order == "desc") std::reverse(items.begin(), items.end());
  std::size_t first = 0;
  if (const std::string after = target.value("after"); !after.empty()) {
    const auto at = std::find_if(items.begin(), items.end(),
                                 [&](const Json& item) { return item.at("id") == after; });
    if (at == items.end()) Fields::wrong("after", "names no item of this list");
    first = static_cast<std::size_t>(at - items.begin()) + 1;
  }
  const auto limit =
      static_cast<std::size_t>(std::clamp<std::int64_t>(target.count("limit", kUsual), 1, kMost));
  const std::size_t end = std::min(items.size(), first + limit);
  Json data = Json::array();
  for (std::size_t i = first; i < end; ++i) data.push_back(std::move(items[i]));
  const auto id = [&](bool last) {
    return data.empty() ? Json() : (last ? data.back() : data.front()).at("id");
  };
  Json page{{"object", "list"},
            {"data", Json::array()},
            {"first_id", id(false)},
            {"last_id", id(true)},
            {"has_more", end < items.size()}};
  page["data"] = std::move(data);
  return page;
}

// -- conversations --------------------------------------------------------------------------------

Json conversation_json(const Json& record) {
  return {{"id", record.at("id")},
          {"object", "conversation"},
          {"created_at", record.at("created_at")},
          {"metadata", record.at("metadata")}};
}

Json items_in(Fields& fields) {
  constexpr std::size_t kMost = 20;
  const nlohmann::json* items = fields.find("items");
  if (items && items->is_array() && items->size() > kMost)
    Fields::wrong("items", fmt::format("has more than {} items", kMost));
  return items ? items_of(*items, "items") : Json::array();
}

Json create_conversation(Conversations& all, Exchange& exchange) {
  const Body body(exchange.body.empty() ? std::string_view("{}") : exchange.body);
  Fields fields(*body);
  Json record{{"id", nullptr},
              {"created_at", static_cast<std::int64_t>(std::time(nullptr))},
              {"metadata", metadata_of(fields.find("metadata"))},
              {"items", items_in(fields)},
              {"read", 0}};  // of the items, by the model
  std::string memory = fields.text("memory", "");
  fields.require_known();
  if (const std::string* named = exchange.head.find("x-episodic-memory"); named && memory.empty())
    memory = *named;
  all.create_conversation(memory, [&](const std::string& id) {
    record["id"] = id;
    return text_of(record);
  });
  return conversation_json(record);
}

/// Changes a conversation's record. \return it
Json change(Conversations& all, const std::string& id, const std::function<void(Json&)>& f) {
  Json changed;
  all.change_conversation(id, [&](const std::string& record) {
    changed = parsed_record(record);
    f(changed);
    return text_of(changed);
  });
  return changed;
}

Json add_items(Conversations& all, const std::string& id, Exchange& exchange) {
  const Body body(exchange.body);
  Fields fields(*body);
  const Json added = items_in(fields);
  fields.require_known();
  if (added.empty()) Fields::wrong("items", "must be a list of at least one item");
  change(all, id, [&](Json& record) {
    record["items"].insert(record["items"].end(), added.begin(), added.end());
  });
  return {{"object", "list"},
          {"data", added},
          {"first_id", added.front().at("id")},
          {"last_id", added.back().at("id")},
          {"has_more", false}};
}

void add_conversation_routes(Router& router, RouteContext& context) {
  using Handler = std::function<Json(Conversations&, Exchange&, const Target&)>;
  const auto add = [&](const char* method, const char* path, Handler handler) {
    router.add(method, path,
               [&context, handler](Exchange& exchange, const Target& target, auto& response) {
                 answer_json(response, handler(conversations_of(context, "conversation", 404),
                                               exchange, target));
               });
  };
  add("POST", "/conversations", [](Conversations& all, Exchange& exchange, const Target&) {
    return create_conversation(all, exchange);
  });
  add("GET", "/conversations/{}", [](Conversations& all, Exchange&, const Target& target) {
    return conversation_json(parsed_record(all.conversation(target.parts[0])));
  });
  add("POST", "/conversations/{}",
      [](Conversations& all, Exchange& exchange, const Target& target) {
        const Body body(exchange.body);
        Fields fields(*body);
        if (!fields.find("metadata")) Fields::wrong("metadata", "is missing");
        const Json metadata = metadata_of(fields.find("metadata"));
        fields.require_known();
        return conversation_json(
            change(all, target.parts[0], [&](Json& record) { record["metadata"] = metadata; }));
      });
  add("DELETE", "/conversations/{}", [](Conversations& all, Exchange&, const Target& target) {
    all.remove_conversation(target.parts[0]);
    return Json{{"id", target.parts[0]}, {"object", "conversation.deleted"}, {"deleted", true}};
  });
  add("GET", "/conversations/{}/items", [](Conversations& all, Exchange&, const Target& target) {
    return page_of(parsed_record(all.conversation(target.parts[0])).at("items"), target);
  });
  add("POST", "/conversations/{}/items",
      [](Conversations& all, Exchange& exchange, const Target& target) {
        return add_items(all, target.parts[0], exchange);
      });
  add("GET", "/conversations/{}/items/{}", [](Conversations& all, Exchange&, const Target& target) {
    const Json record = parsed_record(all.conversation(target.parts[0]));
    for (const Json& item : record.at("items"))
      if (item.at("id") == target.parts[1]) return item;
    throw RequestError(fmt::format("there is no item '{}'", printable(target.parts[1])), "item_id",
                       404, "item_not_found");
  });
}

}  // namespace

void add_responses_routes(Router& router, RouteContext& context) {
  router.add("POST", "/responses", [&context](Exchange& exchange, const Target&, auto& response) {
    respond(context, exchange, response);
  });
  router.add("GET", "/responses/{}", [&context](Exchange&, const Target& target, auto& response) {
    if (target.value("stream") == "true")
      Fields::wrong("stream", "is not built for a response that is there; leave it out");
    const Conversations& all = conversations_of(context, "response_id", 404);
    answer_json(response, parsed_record(all.response(target.parts[0])).at("response"));
  });
  router.add(
      "DELETE", "/responses/{}", [&context](Exchange&, const Target& target, auto& response) {
        conversations_of(context, "response_id", 404).remove_response(target.parts[0]);
        answer_json(response, {{"id", target.parts[0]}, {"object", "response"}, {"deleted", true}});
      });
  router.add("GET", "/responses/{}/input_items",
             [&context](Exchange&, const Target& target, auto& response) {
               const Conversations& all = conversations_of(context, "response_id", 404);
               answer_json(
                   response,
                   page_of(parsed_record(all.response(target.parts[0])).at("input"), target));
             });
  add_conversation_routes(router, context);
}

}  // namespace episodic::server
