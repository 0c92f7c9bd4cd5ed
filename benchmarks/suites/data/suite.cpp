// SPDX-License-Identifier: Apache-2.0
#include "data/suite.hpp"

#include "data/prompts.hpp"
#include "scoring/infinitebench.hpp"
#include "scoring/longbench.hpp"

namespace episodic::suites {

const char* name_of(Suite suite) {
  return suite == Suite::longbench ? "longbench" : "infinitebench";
}

void check_task(Suite suite, const std::string& task) {
  if (suite == Suite::longbench)
    longbench_task(task);
  else
    infinitebench_task(task);
}

std::vector<Example> read_examples(Suite suite, const std::filesystem::path& path,
                                   const std::string& task) {
  return suite == Suite::longbench ? read_longbench(path) : read_infinitebench(path, task);
}

std::map<std::string, std::string> slots_of(Suite suite, const Example& example,
                                            const std::string& task) {
  return suite == Suite::longbench ? longbench_slots(example) : infinitebench_slots(example, task);
}

std::int64_t max_new_of(Suite suite, const std::string& task, Limits limits) {
  if (suite == Suite::longbench) return longbench_task(task).max_new;
  const InfiniteTask& t = infinitebench_task(task);
  return limits == Limits::official ? t.max_new : t.em_max_new;
}

bool in_chat_format(Suite suite, const std::string& task) {
  return suite == Suite::infinitebench || longbench_task(task).chat;
}

bool ends_with_line(Suite suite, const std::string& task) {
  return suite == Suite::longbench && longbench_task(task).name == "samsum";
}

}  // namespace episodic::suites
