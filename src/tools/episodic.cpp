// SPDX-License-Identifier: Apache-2.0
// The `episodic` program: one subcommand per file of this folder.

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "commands.hpp"
#include "common.hpp"

int main(int argc, char** argv) {
  episodic::tools::limit_spinning(argv);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with a message
  episodic::tools::CommandLine app("episodic: transformer inference with an episodic memory",
                                   "episodic");
  app.require_subcommand();
  app.version("episodic " EPISODIC_VERSION);
  app.help_all("Help of all subcommands");
  episodic::tools::add_demo(app);
  episodic::tools::add_check(app);
  episodic::tools::add_generate(app);
  episodic::tools::add_chat(app);
  episodic::tools::add_serve(app);
  episodic::tools::add_ingest(app);
  episodic::tools::add_ask(app);
  episodic::tools::add_inspect(app);
  episodic::tools::add_verify(app);
  episodic::tools::add_fork(app);
  episodic::tools::add_edit(app);
  episodic::tools::add_plan(app);
  episodic::tools::add_quantize(app);
  episodic::tools::add_score(app);
  episodic::tools::add_segment(app);
  episodic::tools::add_tokenize(app);
  episodic::tools::add_compare_events(app);
  episodic::tools::add_trace(app);
  episodic::tools::add_train_lora(app);
  try {
    app.parse(argc, argv);
  } catch (const episodic::tools::UsageError& e) {
    return app.refuse(e);
  } catch (const std::bad_alloc&) {
    std::fputs("episodic: out of memory; lower n_local, n_mem or host_bytes, or read less text\n",
               stderr);
    return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "episodic: %s\n", episodic::tools::on_one_line(e).c_str());
    return 1;
  }
  return episodic::tools::finished("episodic");
}
