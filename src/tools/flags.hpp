// SPDX-License-Identifier: Apache-2.0
#pragma once
// Command lines: commands, their flags, and what these take. A thin view of CLI11, whose templates
// take longer to compile than a command's own code: only flags.cpp includes it.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace episodic::tools {

/// What is wrong with a command line. Programs that hold flags against each other throw it too.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A flag with a value, or an argument without a name. A view: the command line owns the option.
/// The calls say more about it, in the help too, and can be chained.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required() const;
  /// A number above 0.
  Option positive() const;
  /// A number of at least 0.
  Option not_negative() const;
  /// A whole number of [least, most].
  Option between(std::int64_t least, std::int64_t most) const;
  /// A number of [0, 1].
  Option fraction() const;
  Option one_of(std::initializer_list<const char*> words) const;
  /// A folder that is there.
  Option existing_folder() const;
  /// Refused beside the other.
  Option excludes(Option other) const;
  /// Refused without the other.
  Option needs(Option other) const;
  /// Several values in one word, as 1,2,3.
  Option separated_by(char delimiter) const;
  /// May be given several times, with one value each time.
  Option one_value_each() const;
  /// What stands for the value in the help, as FILE.
  Option type_name(const std::string& name) const;
  /// The variable's present value stands in the help.
  Option shows_default() const;
  /// The same for an option that has no variable.
  Option shows_default(const std::string& text) const;

 private:
  CLI::Option* option_;
};

/// A program, one of its commands, or a group of a command's options. A view, as Option is.
/// Variables and functions that are handed over must live until the command line is parsed.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  /// A flag whose value goes into a variable. \tparam T std::string, std::filesystem::path, int,
  /// std::int64_t, std::uint64_t, double, one of the last three as std::optional, or a vector of
  /// strings, paths, std::int64_t or doubles (flags.cpp has the list). \param name "--flag", or
  /// without dashes an argument known by its place
  template <class T>
  Option option(const std::string& name, T& variable, const std::string& help = "");
  /// A flag whose value `take` reads. \param take throws UsageError for what it does not accept
  Option option_read_by(const std::string& name, std::function<void(const std::string&)> take,
                        const std::string& help);
  /// A flag without a value.
  Option flag(const std::string& name, bool& variable, const std::string& help);
  /// Options under a heading of their own in the help.
  Command group(const std::string& name);
  /// Exactly one of a group's options must be given.
  void require_one_option();

  Command subcommand(const std::string& name, const std::string& help);
  /// Exactly one of the subcommands must be given.
  void require_subcommand();
  /// What the help ends with.
  void footer(const std::string& text);
  /// What the command does once its flags are read.
  void action(std::function<void()> run);

  /// Its flags with their dashes, those of groups among them, sorted.
  std::vector<std::string> flag_names() const;
  /// Its commands, in the help's order.
  std::vector<std::string> subcommand_names() const;
  /// The command of this name, which must be there.
  Command subcommand(const std::string& name) const;

 protected:
  CLI::App* app_;
};

/// The command line of a program.
class CommandLine : public Command {
 public:
  CommandLine(const std::string& help, const std::string& name);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Adds --version, which prints the text.
  void version(const std::string& text);
  /// Adds --help-all.
  void help_all(const std::string& help);
  std::string name() const;

  /// Reads the flags and runs the actions of the commands that were given. \return false if help or
  /// the version was asked for and is printed, so that nothing is left to do
  /// \throws UsageError, and what the actions throw
  bool parse(int argc, const char* const* argv);
  /// Says on stderr, in one line, what is wrong with what `parse` read, what was probably meant and
  /// where the help is. \return 2, the exit code of wrong usage
  int refuse(const UsageError& error) const;

 private:
  std::unique_ptr<CLI::App> owned_;
  std::vector<std::string> words_;  // of the command line, without the program's name
};

}  // namespace episodic::tools
