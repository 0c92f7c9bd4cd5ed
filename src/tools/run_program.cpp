// SPDX-License-Identifier: Apache-2.0
#include "run_program.hpp"

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "common.hpp"

namespace episodic::tools {

int run_program(int argc, char** argv, const std::function<void(CommandLine&)>& add) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with a message
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
    std::fputs("episodic: out of memory; lower n_local, n_mem or host_bytes, or read less text\n",
               stderr);
    return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "episodic: %s\n", on_one_line(e).c_str());
    return 1;
  }
  return finished("episodic");
}

}  // namespace episodic::tools
