// SPDX-License-Identifier: Apache-2.0
#include "json_schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/grammar/grammar.hpp"
#include "text/utf8.hpp"

namespace episodic {
namespace grammar {
namespace {

constexpr int kDeepestSchema = 64;
constexpr std::uint32_t kMostCounted = 1'000'000'000;
constexpr std::size_t kLongestName = 500;   // of a property, beside additional ones
constexpr std::size_t kMostExclusive = 64;  // parts of oneOf

/// Keywords, and the type that they speak of.
struct Keyword {
  std::string_view name, type;
};
constexpr Keyword kKeywords[] = {{"$ref", ""},
                                 {"allOf", ""},
                                 {"anyOf", ""},
                                 {"oneOf", ""},
                                 {"const", ""},
                                 {"enum", ""},
                                 {"type", ""},
                                 {"properties", "object"},
                                 {"required", "object"},
                                 {"additionalProperties", "object"},
                                 {"minProperties", "object"},
                                 {"maxProperties", "object"},
                                 {"items", "array"},
                                 {"prefixItems", "array"},
                                 {"minItems", "array"},
                                 {"maxItems", "array"},
                                 {"uniqueItems", "array"},
                                 {"minLength", "string"},
                                 {"maxLength", "string"},
                                 {"pattern", "string"},
                                 {"format", "string"},
                                 {"minimum", "number"},
                                 {"maximum", "number"},
                                 {"exclusiveMinimum", "number"},
                                 {"exclusiveMaximum", "number"}};

const Keyword* keyword(std::string_view name) {
  const auto* at = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                [&](const Keyword& k) { return k.name == name; });
  return at == std::end(kKeywords) ? nullptr : at;
}

class SchemaParser {
 public:
  explicit SchemaParser(std::string_view text) : tree_(text), b("json schema"), json_(b) {}

  std::shared_ptr<const Program> parse() {
    const Rule root = b.rule("the schema");
    b.define(root, schema(tree_.root(), "", 0));
    while (!waiting_.empty()) {  // one after another: references may follow each other far
      const Waiting next = waiting_.back();
      waiting_.pop_back();
      b.define(next.rule, schema(*next.schema, next.at, 0));
    }
    return b.compile(root);
  }

 private:
  /// What a reference names, not yet read.
  struct Waiting {
    std::string at;
    Rule rule;
    const OrderedJson* schema;
  };

  [[noreturn]] static void fail(const std::string& at, const std::string& what) {
    SchemaTree::fail(at, what);
  }
  static std::string below(const std::string& at, std::string_view key) {
    return SchemaTree::below(at, key);
  }
  static std::string below(const std::string& at, std::size_t i) {
    return SchemaTree::below(at, std::to_string(i));
  }
  /// What a keyword says; null: it is not there.
  static const OrderedJson* find(const OrderedJson& schema, const char* key) {
    const auto at = schema.find(key);
    return at == schema.end() ? nullptr : &*at;
  }
  /// What is said of values beside some keywords.
  static OrderedJson without(const OrderedJson& schema,
                             std::initializer_list<std::string_view> keys) {
    OrderedJson out = OrderedJson::object();
    for (const auto& [key, value] : schema.items())
      if (!SchemaTree::is_annotation(key) && std::find(keys.begin(), keys.end(), key) == keys.end())
        out[key] = value;
    return out;
  }

  std::uint32_t count(const OrderedJson& schema, const char* key, const std::string& at,
                      std::uint32_t otherwise) const {
    const OrderedJson* value = find(schema, key);
    if (!value) return otherwise;
    const bool whole = value->is_number() && is_of_type(*value, "integer");
    if (!whole || value->get<double>() < 0) fail(below(at, key), "must be an integer, 0 or more");
    if (value->get<double>() > kMostCounted)
      fail(below(at, key), fmt::format("is more than {}", kMostCounted));
    return static_cast<std::uint32_t>(value->get<double>());
  }
  /// A least and a greatest number.
  std::pair<std::uint32_t, std::uint32_t> counts(const OrderedJson& schema, const char* least,
                                                 const char* most, const std::string& at) const {
    const std::uint32_t min = count(schema, least, at, 0);
    const std::uint32_t max = count(schema, most, at, kUnbounded);
    if (max < min) fail(below(at, most), fmt::format("is less than {}, {}", least, min));
    return {min, max};
  }

  Part schema(const OrderedJson& s, const std::string& at, int depth) {
    if (depth > kDeepestSchema)
      fail(at, fmt::format("schemas lie more than {} deep within each other; use $ref",
                           kDeepestSchema));
    if (s.is_boolean() && s.get<bool>()) return json_.value();
    if (s.is_boolean()) fail(at, "allows no value");
    if (!s.is_object()) fail(at, "must be an object, true or false");
    for (const auto& [key, value] : s.items())
      if (!SchemaTree::is_annotation(key) && !keyword(key))
        fail(below(at, key), "is not supported in constrained answers; leave it out");
    if (const OrderedJson* ref = find(s, "$ref"); ref && without(s, {"$ref"}).empty())
      return reference(*ref, at);
    if (const OrderedJson* all = find(s, "allOf");
        all && all->is_array() && all->size() == 1 && without(s, {"allOf"}).empty())
      return schema((*all)[0], below(below(at, "allOf"), std::size_t{0}), depth + 1);
    if (find(s, "$ref") || find(s, "allOf")) return schema(tree_.flat(s, at), at, depth + 1);
    if (find(s, "anyOf") || find(s, "oneOf")) return alternatives(s, at, depth);
    if (find(s, "const") || find(s, "enum")) return literals(s, at);
    return typed(s, at, depth);
  }

  Part reference(const OrderedJson& ref, const std::string& at) {
    const std::string pointer = tree_.pointer(ref, at);
    const OrderedJson& target = tree_.target(ref, at);
    const auto known = references_.find(pointer);
    if (known != references_.end()) return b.call(known->second);
    const Rule rule = b.rule(fmt::format("'#{}'", pointer));
    references_.emplace(pointer, rule);
    waiting_.push_back({pointer, rule, &target});
    return b.call(rule);
  }

  Part alternatives(const OrderedJson& s, const std::string& at, int depth) {
    if (find(s, "anyOf") && find(s, "oneOf"))
      fail(below(at, "oneOf"), "beside anyOf is not supported");
    const char* key = find(s, "anyOf") ? "anyOf" : "oneOf";
    const OrderedJson& list = s[key];
    const std::string here = below(at, key);
    if (!list.is_array() || list.empty()) fail(here, "must be a list of schemas");
    const OrderedJson rest = without(s, {key});
    std::vector<OrderedJson> parts;
    for (std::size_t i = 0; i < list.size(); ++i)
      parts.push_back(
          rest.empty() ? list[i]
                       : tree_.both(rest, tree_.flat(list[i], below(here, i)), below(here, i), 0));
    if (key == std::string_view("oneOf")) check_apart(parts, here);
    std::vector<Part> choices;
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (!(parts[i].is_boolean() && !parts[i].get<bool>()))
        choices.push_back(schema(parts[i], below(here, i), depth + 1));
    if (choices.empty()) fail(here, "allows no value");
    return b.choice(std::move(choices));
  }

  void check_apart(const std::vector<OrderedJson>& parts, const std::string& at) {
    if (parts.size() > kMostExclusive)
      fail(at, fmt::format("has more than {} parts; use anyOf", kMostExclusive));
    for (std::size_t i = 0; i < parts.size(); ++i)
      for (std::size_t k = i + 1; k < parts.size(); ++k)
        if (!tree_.apart(parts[i], parts[k], at))
          fail(at,
               fmt::format("a value could be of part {} and of part {}, which oneOf forbids; "
                           "use anyOf, or give each a required property with a const of its own",
                           i, k));
  }

  Part literals(const OrderedJson& s, const std::string& at) {
    const OrderedJson rest = without(s, {"const", "enum", "type"});
    if (!rest.empty()) fail(below(at, rest.begin().key()), "beside const or enum is not supported");
    const OrderedJson* values = find(s, "enum");
    if (values && (!values->is_array() || values->empty()))
      fail(below(at, "enum"), "must be a list with something in it");
    const std::vector<std::string> types = types_of(s, at);
    std::vector<Part> parts;
    const auto add = [&](const OrderedJson& value) {
      const bool typed =
          types.empty() || std::any_of(types.begin(), types.end(),
                                       [&](const auto& t) { return is_of_type(value, t); });
      if (typed) parts.push_back(b.literal(value.dump()));
    };
    if (const OrderedJson* one = find(s, "const")) {
      const bool listed =
          !values || std::find(values->begin(), values->end(), *one) != values->end();
      if (listed) add(*one);
    } else {
      for (const OrderedJson& value : *values) add(value);
    }
    if (parts.empty()) fail(below(at, values ? "enum" : "const"), "no value of it is of the type");
    return b.choice(std::move(parts));
  }

  std::vector<std::string> types_of(const OrderedJson& s, const std::string& at) const {
    const OrderedJson* type = find(s, "type");
    std::vector<std::string> types;
    if (!type) return types;
    const auto add = [&](const OrderedJson& one) {
      constexpr std::string_view kTypes[] = {"null",   "boolean", "object", "array",
                                             "number", "integer", "string"};
      const bool known =
          one.is_string() && std::find(std::begin(kTypes), std::end(kTypes),
                                       one.get_ref<const std::string&>()) != std::end(kTypes);
      if (!known) fail(below(at, "type"), "must be a type of JSON Schema, or a list of them");
      types.push_back(one.get<std::string>());
    };
    if (type->is_array())
      for (const OrderedJson& one : *type) add(one);
    else
      add(*type);
    if (types.empty()) fail(below(at, "type"), "must name a type");
    return types;
  }

  Part typed(const OrderedJson& s, const std::string& at, int depth) {
    std::vector<std::string> types = types_of(s, at);
    if (types.empty()) {  // what its keywords speak of
      for (const auto& [key, value] : s.items()) {
        const Keyword* known = SchemaTree::is_annotation(key) ? nullptr : keyword(key);
        if (known && std::find(types.begin(), types.end(), known->type) == types.end())
          types.emplace_back(known->type);
      }
      if (types.empty()) return json_.value();
      if (types.size() > 1) fail(at, "has keywords of several types; add \"type\"");
    }
    std::vector<Part> parts;
    for (const std::string& type : types) {
      if (type == "null") parts.push_back(b.literal("null"));
      if (type == "boolean") parts.push_back(json_.boolean());
      if (type == "string") parts.push_back(string(s, at));
      if (type == "number" || type == "integer") parts.push_back(number(s, at, type));
      if (type == "array") parts.push_back(array(s, at, depth));
      if (type == "object") parts.push_back(object(s, at, depth));
    }
    return b.choice(std::move(parts));
  }

  Part string(const OrderedJson& s, const std::string& at) {
    const OrderedJson *pattern = find(s, "pattern"), *format = find(s, "format");
    const auto [min, max] = counts(s, "minLength", "maxLength", at);
    if (!pattern && !format)
      return find(s, "minLength") || find(s, "maxLength") ? json_.string(min, max) : json_.string();
    for (const char* key : {"minLength", "maxLength", "format"})
      if (find(s, key) && (pattern || key != std::string_view("format")))
        fail(below(at, key),
             fmt::format("beside {} is not supported", pattern ? "pattern" : "format"));
    const char* key = pattern ? "pattern" : "format";
    const OrderedJson& value = pattern ? *pattern : *format;
    if (!value.is_string()) fail(below(at, key), "must be a string");
    std::string expression = value.get<std::string>();
    if (format) {
      const char* known = pattern_of_format(expression);
      if (!known)
        fail(below(at, key), fmt::format("'{}' is not supported; leave it out, or use pattern",
                                         printable(expression)));
      expression = known;
    }
    return with_place(below(at, key), [&] {
      return b.sequence(
          {b.literal("\""), string_of_pattern(expression, b, json_), b.literal("\"")});
    });
  }

  template <class Make>
  static Part with_place(const std::string& at, Make make) {
    try {
      return make();
    } catch (const Unsupported& e) {
      fail(at, e.what());
    }
  }

  Part number(const OrderedJson& s, const std::string& at, const std::string& type) {
    NumberBounds bounds;
    const auto bound = [&](const char* key, const OrderedJson*& to) {
      to = find(s, key);
      if (to && !to->is_number()) fail(below(at, key), "must be a number");
    };
    bound("minimum", bounds.minimum);
    bound("maximum", bounds.maximum);
    bound("exclusiveMinimum", bounds.above);
    bound("exclusiveMaximum", bounds.below);
    const bool whole = type == "integer";
    if (!bounds.any()) return whole ? json_.integer() : json_.number();
    return with_place(at, [&] { return whole ? json_.integer(bounds) : json_.number(bounds); });
  }

  Part array(const OrderedJson& s, const std::string& at, int depth) {
    const auto [min, max] = counts(s, "minItems", "maxItems", at);
    if (const OrderedJson* unique = find(s, "uniqueItems"); unique && *unique != false)
      fail(below(at, "uniqueItems"), "is not supported: a grammar cannot compare items");
    const OrderedJson *items = find(s, "items"), *prefix = find(s, "prefixItems");
    if (items && items->is_array())
      fail(below(at, "items"), "a list of schemas is called prefixItems now");
    const bool no_more = items && items->is_boolean() && !items->get<bool>();
    const auto item = [&] {
      return items ? schema(*items, below(at, "items"), depth + 1) : json_.value();
    };
    if (!prefix) {
      if (no_more && min > 0) fail(below(at, "items"), "allows no item, and minItems asks for one");
      return no_more ? json_.list('[', b.nothing(), ']', 0, 0)
                     : json_.list('[', item(), ']', min, max);
    }
    if (!prefix->is_array()) fail(below(at, "prefixItems"), "must be a list of schemas");
    const auto given = static_cast<std::uint32_t>(prefix->size());
    const std::uint32_t first = std::min(given, max);
    std::vector<Part> parts{json_.mark('[')};
    for (std::uint32_t i = 0; i < first; ++i) {
      if (i > 0) parts.push_back(json_.mark(','));
      parts.push_back(schema((*prefix)[i], below(below(at, "prefixItems"), i), depth + 1));
    }
    const std::uint32_t least = min > first ? min - first : 0;
    if (least > 0 && no_more)
      fail(below(at, "minItems"), "asks for more items than prefixItems and items allow");
    // more than the given ones only where the schema speaks of them
    if (first == given && ((items && !no_more) || least > 0)) {
      if (first == 0) return json_.list('[', item(), ']', min, max);
      parts.push_back(b.repeat(b.sequence({json_.mark(','), item()}), least,
                               max == kUnbounded ? kUnbounded : max - first));
    }
    parts.push_back(first > 0 ? json_.space() : b.nothing());
    parts.push_back(b.literal("]"));
    return b.sequence(std::move(parts));
  }

  struct Property {
    Part pair;
    bool required;
  };

  Part pair(const Part& key, const Part& value) {
    return b.sequence({key, json_.mark(':'), value});
  }

  Part object(const OrderedJson& s, const std::string& at, int depth) {
    const OrderedJson none = OrderedJson::object(), nothing = OrderedJson::array();
    const OrderedJson *given = find(s, "properties"), *needed = find(s, "required");
    const OrderedJson* additional = find(s, "additionalProperties");
    if (given && !given->is_object()) fail(below(at, "properties"), "must be an object");
    if (needed && !needed->is_array()) fail(below(at, "required"), "must be a list of names");
    const bool closed =
        additional ? additional->is_boolean() && !additional->get<bool>() : given != nullptr;
    const auto more = [&] {
      return additional ? schema(*additional, below(at, "additionalProperties"), depth + 1)
                        : json_.value();
    };
    std::vector<std::string> required, names;
    for (const OrderedJson& name : needed ? *needed : nothing) {
      if (!name.is_string()) fail(below(at, "required"), "must be a list of names");
      if (std::find(required.begin(), required.end(), name) == required.end())
        required.push_back(name.get<std::string>());
    }
    const auto is_required = [&](const std::string& name) {
      return std::find(required.begin(), required.end(), name) != required.end();
    };
    std::vector<Property> properties;
    const auto add = [&](const std::string& name, const Part& value) {
      // each stands twice below: at the beginning, and behind a comma
      const Rule rule = b.rule(fmt::format("'#{}'", below(below(at, "properties"), name)));
      b.define(rule, pair(b.literal(json_string(name)), value));
      properties.push_back({b.call(rule), is_required(name)});
    };
    for (const auto& [name, value] : (given ? *given : none).items()) {
      const std::string here = below(below(at, "properties"), name);
      names.push_back(name);
      if (value.is_boolean() && !value.get<bool>()) {
        if (is_required(name)) fail(here, "is required, and allows no value");
        continue;
      }
      add(name, schema(value, here, depth + 1));
    }
    for (const std::string& name : required) {
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      if (additional && closed)
        fail(below(at, "required"),
             fmt::format("asks for '{}', which additionalProperties forbids", printable(name)));
      names.push_back(name);
      add(name, more());
    }
    const auto [min, max] = counts(s, "minProperties", "maxProperties", at);
    if (properties.empty() && !closed) {
      if (min > 1)
        fail(below(at, "minProperties"),
             "above 1 is not supported: a grammar cannot compare names");
      return json_.list('{', pair(key_apart_from(names, at), more()), '}', min, max);
    }
    if (min > required.size())
      fail(below(at, "minProperties"), "above the number of required properties is not supported");
    if (closed ? max < properties.size() : max != kUnbounded)
      fail(below(at, "maxProperties"), "below the number of properties is not supported");
    std::optional<Part> others;
    if (!closed) others = pair(key_apart_from(names, at), more());
    return members(properties, others);
  }

  /// `{`, the properties in their order, those that are not required or not, then others, `}`.
  Part members(const std::vector<Property>& properties, const std::optional<Part>& others) {
    const auto as_rule = [&](const Part& part) {
      const Rule rule = b.rule("the rest of an object");
      b.define(rule, part);
      return b.call(rule);
    };
    const Part end = b.literal("}");
    const auto more = [&] {
      return b.repeat(b.sequence({json_.mark(','), *others}), 0, kUnbounded);
    };
    // what follows where nothing was written so far, and where a comma is due
    Part first =
        others ? b.sequence({b.optional(b.sequence({*others, more(), json_.space()})), end}) : end;
    Part then = as_rule(others ? b.sequence({more(), json_.space(), end})
                               : b.sequence({json_.space(), end}));
    first = as_rule(first);
    for (auto p = properties.rbegin(); p != properties.rend(); ++p) {
      const Part begins = b.sequence({p->pair, then});
      const Part goes_on = b.sequence({json_.mark(','), p->pair, then});
      first = as_rule(p->required ? begins : b.choice({begins, first}));
      then = as_rule(p->required ? goes_on : b.choice({goes_on, then}));
    }
    return b.sequence({json_.mark('{'), first});
  }

  /// A key that is none of the names. Without names it may be written in any way; beside them it
  /// has no escapes, by which it could be one of them in disguise.
  Part key_apart_from(const std::vector<std::string>& names, const std::string& at) {
    if (names.empty()) return json_.string();
    std::vector<std::u32string> points;
    for (const std::string& name : names) {
      std::u32string one;
      for (std::size_t i = 0; i < name.size();) {
        const std::size_t n = text::utf8_length(name, i);
        one += static_cast<char32_t>(text::utf8_code_point(name, i, n));
        i += n;
      }
      if (one.size() > kLongestName)
        fail(below(at, "properties"),
             fmt::format("a name of more than {} characters beside additionalProperties is not "
                         "supported",
                         kLongestName));
      points.push_back(std::move(one));
    }
    std::sort(points.begin(), points.end());
    points.erase(std::unique(points.begin(), points.end()), points.end());
    return b.sequence({b.literal("\""), other_than(points, 0), b.literal("\"")});
  }

  /// The rest of a key behind `depth` characters that all these names begin with; sorted.
  Part other_than(std::span<const std::u32string> names, std::size_t depth) {
    std::vector<Part> parts;
    const bool is_name = names.front().size() == depth;
    if (!is_name) parts.push_back(b.nothing());
    CharacterRanges taken;
    for (std::size_t i = is_name ? 1 : 0; i < names.size();) {
      const char32_t c = names[i][depth];
      std::size_t end = i;
      while (end < names.size() && names[end][depth] == c) ++end;
      const CharacterRanges one{{c, c}};
      taken.add(c, c);
      if (JsonParts::plain_characters().contains(c))
        parts.push_back(
            b.sequence({b.characters(one), other_than(names.subspan(i, end - i), depth + 1)}));
      i = end;
    }
    const CharacterRanges plain = JsonParts::plain_characters();
    parts.push_back(b.sequence({b.characters(plain.intersection(taken.complement())),
                                b.repeat(b.characters(plain), 0, kUnbounded)}));
    return b.choice(std::move(parts));
  }

  SchemaTree tree_;
  Builder b;
  JsonParts json_;
  std::map<std::string, Rule> references_;
  std::vector<Waiting> waiting_;
};

}  // namespace
}  // namespace grammar

Grammar grammar_of_json_schema(std::string_view schema) {
  return Grammar(grammar::SchemaParser(schema).parse());
}

Grammar grammar_of_json_object() {
  grammar::Builder builder("json object");
  grammar::JsonParts json(builder);
  const grammar::Rule root = builder.rule("an object");
  builder.define(root, json.object());
  return Grammar(builder.compile(root));
}

}  // namespace episodic
