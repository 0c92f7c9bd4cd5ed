// SPDX-License-Identifier: Apache-2.0
// The `episodic` program: one subcommand per file of this folder.

#include "commands.hpp"
#include "common.hpp"
#include "run_program.hpp"
#include "trainer.hpp"
#if EPISODIC_REDIS
#include "episodic/redis/redis_tier.hpp"
#endif

int main(int argc, char** argv) {
  episodic::tools::limit_spinning(argv);
#if EPISODIC_REDIS
  episodic::add_redis_scheme();
#endif
  return episodic::tools::run_program(argc, argv, [&](episodic::tools::CommandLine& app) {
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
    episodic::tools::add_fleet(app);
    episodic::tools::add_quantize(app);
    episodic::tools::add_score(app);
    episodic::tools::add_segment(app);
    episodic::tools::add_tokenize(app);
    episodic::tools::add_compare_events(app);
    episodic::tools::add_trace(app);
    episodic::tools::add_trainer(app);
    episodic::tools::hand_to_trainer(argc, argv);
  });
}
