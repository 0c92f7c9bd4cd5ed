// SPDX-License-Identifier: Apache-2.0
#pragma once
// The subcommands of `episodic`. Each adds itself to the command line; its callback does the work
// and throws on failure.

namespace CLI {
class App;
}  // namespace CLI

namespace episodic::tools {

void add_ask(CLI::App& app);
void add_compare_events(CLI::App& app);
void add_demo(CLI::App& app);
void add_edit(CLI::App& app);
void add_fork(CLI::App& app);
void add_generate(CLI::App& app);
void add_ingest(CLI::App& app);
void add_inspect(CLI::App& app);
void add_plan(CLI::App& app);
void add_quantize(CLI::App& app);
void add_score(CLI::App& app);
void add_segment(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_trace(CLI::App& app);
void add_train_lora(CLI::App& app);
void add_verify(CLI::App& app);

}  // namespace episodic::tools
