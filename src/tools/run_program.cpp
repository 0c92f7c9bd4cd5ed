// SPDX-License-Identifier: Apache-2.0
#include "run_program.hpp"

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "common.hpp"
#include "ranks.hpp"

namespace episodic::tools {

int run_program(int argc, char** argv, const std::function<void(CommandLine&)>& add) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with a message
  silence_other_ranks(argc, argv);
  CommandLine app("episodic: transformer inference with an episodic memory", "episodic");
  app.require_subcommand();
  app.version("episodic " EPISODIC_VERSION);
  app.help_all("Help of all subcommands");
  try {
    add(app);
    app.parse(argc, argv);
  } catch (const UsageError& e) {
    return app.refuse(e);
  } catch (const std::bad_alloc&) {
    ranks_failed("it is out of memory");
    std::fputs("episodic: out of memory; lower n_local, n_mem or host_bytes, or read less text\n",
               stderr);
    ranks_ended();
    return 1;
  } catch (const std::exception& e) {
    ranks_failed(e.what());
    std::fprintf(stderr, "episodic: %s\n", on_one_line(e).c_str());
    ranks_ended();
    return 1;
  }
  ranks_ended();
  return finished("episodic");
}

}  // namespace episodic::tools
