// SPDX-License-Identifier: Apache-2.0
#pragma once
// The subcommands of `episodic`. Each adds itself to the command line; its callback does the work
// and throws on failure.

#include "flags.hpp"

namespace episodic::tools {

void add_ask(Command& app);
void add_chat(Command& app);
void add_check(Command& app);
void add_compare_events(Command& app);
void add_demo(Command& app);
void add_edit(Command& app);
void add_fleet(Command& app);
void add_fork(Command& app);
void add_generate(Command& app);
void add_ingest(Command& app);
void add_inspect(Command& app);
void add_plan(Command& app);
void add_quantize(Command& app);
void add_score(Command& app);
void add_segment(Command& app);
void add_serve(Command& app);
void add_tokenize(Command& app);
void add_trace(Command& app);
/// The full command, in the program episodic-train-lora; `episodic` has trainer.hpp.
void add_train_lora(Command& app);
void add_verify(Command& app);

}  // namespace episodic::tools
