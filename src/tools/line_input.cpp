// SPDX-License-Identifier: Apache-2.0
#include "line_input.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <utility>

#ifdef EPISODIC_LIBEDIT
#include <histedit.h>
#include <langinfo.h>

#include <algorithm>
#include <clocale>

#include "episodic/base/error.hpp"
#include "line_history.hpp"
#endif

namespace episodic::tools {

#ifdef EPISODIC_LIBEDIT

namespace {

/// Whether the terminal can move its cursor, as far as its name says.
bool can_edit() {
  const char* term = std::getenv("TERM");
  return isatty(0) != 0 && isatty(1) != 0 && term && *term && std::string_view(term) != "dumb";
}

/// libedit reads characters as the locale says. Models speak UTF-8, and so do terminals today.
void expect_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

class LineInput::Editor {
 public:
  explicit Editor(const Options& options)
      : completions_(options.completions), kept_(options.history) {
    expect_utf8();
    edit_ = el_init("episodic", stdin, stdout, stderr);
    history_ = history_init();
    if (!edit_ || !history_) {
      close();
      throw DataError("the terminal's line editor cannot be started");
    }
    HistEvent event;
    history(history_, &event, H_SETSIZE, static_cast<int>(LineHistory::kLines));
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, &Editor::prompt);
    el_set(edit_, EL_SIGNAL, 1);  // the terminal is set right before a signal ends the program
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_ADDFN, "episodic-complete", "Complete the first word", &Editor::complete);
    el_set(edit_, EL_BIND, "^I", "episodic-complete", nullptr);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(edit_, nullptr);
    if (!kept_.file().empty())
      try_history([&] {
        for (const std::string& line : kept_.load()) remember(line);
      });
  }
  ~Editor() { close(); }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  bool next(const std::string& prompt, std::string& line) {
    prompt_ = prompt;
    int count = 0;
    const char* typed = el_gets(edit_, &count);
    if (!typed || count <= 0) return false;
    line.assign(typed, static_cast<std::size_t>(count));
    while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) return true;
    remember(line);
    if (!kept_.file().empty()) try_history([&] { kept_.add(line); });
    return true;
  }
  std::string trouble() { return std::exchange(trouble_, {}); }

 private:
  void close() {
    if (history_) history_end(history_);
    if (edit_) el_end(edit_);
  }
  void remember(const std::string& line) {
    HistEvent event;
    history(history_, &event, H_ENTER, line.c_str());
  }
  /// A history that cannot be read or written is said once and given up.
  template <class F>
  void try_history(const F& work) {
    try {
      work();
    } catch (const FileError& e) {
      trouble_ = e.what();
      kept_ = LineHistory(std::filesystem::path());
    }
  }
  static Editor& of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<Editor*>(self);
  }
  static char* prompt(EditLine* edit) { return of(edit).prompt_.data(); }
  static unsigned char complete(EditLine* edit, int /*key*/) {
    const LineInfo* info = el_line(edit);
    const std::string_view typed(info->buffer,
                                 static_cast<std::size_t>(info->cursor - info->buffer));
    std::string common;
    bool any = false;
    for (const std::string& word : of(edit).completions_) {
      if (typed.empty() || !word.starts_with(typed)) continue;
      const auto ends = std::mismatch(common.begin(), common.end(), word.begin(), word.end());
      common = std::exchange(any, true) ? std::string(common.begin(), ends.first) : word;
    }
    if (common.size() <= typed.size()) return CC_ERROR;
    return el_insertstr(edit, common.c_str() + typed.size()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
  std::vector<std::string> completions_;
  LineHistory kept_;
  std::string prompt_, trouble_;
};

LineInput::LineInput(const Options& options)
    : prompts_(options.prompts && isatty(0) != 0 && isatty(2) != 0) {
  if (options.edits && can_edit()) editor_ = std::make_unique<Editor>(options);
}

#else

/// None in this build.
class LineInput::Editor {
 public:
  bool next(const std::string& /*prompt*/, std::string& /*line*/) { return false; }
  std::string trouble() { return {}; }
};

LineInput::LineInput(const Options& options)
    : prompts_(options.prompts && isatty(0) != 0 && isatty(2) != 0) {}

#endif

LineInput::~LineInput() = default;

bool LineInput::next(const std::string& prompt, std::string& line) {
  if (editor_) return editor_->next(prompts_ ? prompt : std::string(), line);
  if (prompts_) std::fputs(prompt.c_str(), stderr);
  return static_cast<bool>(std::getline(std::cin, line));
}

std::string LineInput::trouble() { return editor_ ? editor_->trouble() : std::string(); }

}  // namespace episodic::tools
