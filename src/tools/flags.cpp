// SPDX-License-Identifier: Apache-2.0
#include "flags.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>

#include "usage.hpp"

namespace episodic::tools {
namespace {

constexpr int kWrongUsage = 2;

std::set<std::string> flags_of(const CLI::App& app) {
  std::set<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.insert("--" + name);
  // groups of options are nameless apps inside
  for (const CLI::App* group : app.get_subcommands(
           [](const CLI::App* a) { return a->get_name().empty() || a->get_group().empty(); }))
    names.merge(flags_of(*group));
  return names;
}

}  // namespace

Option Option::required() const { return Option(option_->required()); }

Option Option::positive() const { return Option(option_->check(CLI::PositiveNumber)); }

Option Option::not_negative() const { return Option(option_->check(CLI::NonNegativeNumber)); }

Option Option::between(std::int64_t least, std::int64_t most) const {
  return Option(option_->check(CLI::Range(least, most)));
}

Option Option::fraction() const { return Option(option_->check(CLI::Range(0.0, 1.0))); }

Option Option::one_of(std::initializer_list<const char*> words) const {
  return Option(
      option_->check(CLI::IsMember(std::vector<std::string>(words.begin(), words.end()))));
}

Option Option::existing_folder() const { return Option(option_->check(CLI::ExistingDirectory)); }

Option Option::excludes(Option other) const { return Option(option_->excludes(other.option_)); }

Option Option::needs(Option other) const { return Option(option_->needs(other.option_)); }

Option Option::separated_by(char delimiter) const { return Option(option_->delimiter(delimiter)); }

Option Option::one_value_each() const { return Option(option_->allow_extra_args(false)); }

Option Option::type_name(const std::string& name) const { return Option(option_->type_name(name)); }

Option Option::shows_default() const { return Option(option_->capture_default_str()); }

Option Option::shows_default(const std::string& text) const {
  return Option(option_->default_str(text));
}

template <class T>
Option Command::option(const std::string& name, T& variable, const std::string& help) {
  return Option(app_->add_option(name, variable, help));
}

template Option Command::option(const std::string&, std::string&, const std::string&);
template Option Command::option(const std::string&, std::filesystem::path&, const std::string&);
template Option Command::option(const std::string&, int&, const std::string&);
template Option Command::option(const std::string&, std::int64_t&, const std::string&);
template Option Command::option(const std::string&, std::uint64_t&, const std::string&);
template Option Command::option(const std::string&, double&, const std::string&);
template Option Command::option(const std::string&, std::optional<std::int64_t>&,
                                const std::string&);
template Option Command::option(const std::string&, std::optional<std::uint64_t>&,
                                const std::string&);
template Option Command::option(const std::string&, std::optional<double>&, const std::string&);
template Option Command::option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Command::option(const std::string&, std::vector<std::filesystem::path>&,
                                const std::string&);
template Option Command::option(const std::string&, std::vector<std::int64_t>&, const std::string&);
template Option Command::option(const std::string&, std::vector<double>&, const std::string&);

Option Command::option_read_by(const std::string& name,
                               std::function<void(const std::string&)> take,
                               const std::string& help) {
  return Option(app_->add_option_function<std::string>(name, take, help));
}

Option Command::flag(const std::string& name, bool& variable, const std::string& help) {
  return Option(app_->add_flag(name, variable, help));
}

Command Command::group(const std::string& name) { return Command(app_->add_option_group(name)); }

void Command::require_one_option() { app_->require_option(1); }

Command Command::subcommand(const std::string& name, const std::string& help) {
  return Command(app_->add_subcommand(name, help));
}

void Command::require_subcommand() { app_->require_subcommand(1); }

void Command::footer(const std::string& text) { app_->footer(text); }

void Command::action(std::function<void()> run) { app_->callback(std::move(run)); }

std::vector<std::string> Command::flag_names() const {
  const std::set<std::string> names = flags_of(*app_);
  return {names.begin(), names.end()};
}

std::vector<std::string> Command::subcommand_names() const {
  std::vector<std::string> names;
  // groups of options are nameless
  for (const CLI::App* sub : app_->get_subcommands([](const CLI::App*) { return true; }))
    if (!sub->get_name().empty()) names.push_back(sub->get_name());
  return names;
}

Command Command::subcommand(const std::string& name) const {
  return Command(app_->get_subcommand(name));
}

CommandLine::CommandLine(const std::string& help, const std::string& name)
    : Command(nullptr), owned_(std::make_unique<CLI::App>(help, name)) {
  app_ = owned_.get();
}

CommandLine::~CommandLine() = default;

void CommandLine::version(const std::string& text) { app_->set_version_flag("--version", text); }

void CommandLine::help_all(const std::string& help) { app_->set_help_all_flag("--help-all", help); }

std::string CommandLine::name() const { return app_->get_name(); }

bool CommandLine::parse(int argc, const char* const* argv) {
  words_.assign(argv + std::min(argc, 1), argv + argc);
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw UsageError(error.what());
    app_->exit(error);  // prints the help or the version
    return false;
  }
  return true;
}

int CommandLine::refuse(const UsageError& error) const {
  std::string problem = usage_problem(*this, name(), words_, error);
  std::replace(problem.begin(), problem.end(), '\n', ' ');
  std::fprintf(stderr, "%s: %s\n", name().c_str(), problem.c_str());
  return kWrongUsage;
}

}  // namespace episodic::tools
