// SPDX-License-Identifier: Apache-2.0
// The 260K-parameter stories model against its float64 run: token for token, and in its numbers.

#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "episodic/model/decoder.hpp"
#include "support/shared.hpp"

using namespace episodic;

namespace {

std::optional<std::filesystem::path> models_dir() {
  const auto shared = shared_dir();
  if (!shared || !std::filesystem::exists(*shared / "data/models/stories260k")) return std::nullopt;
  return *shared / "data/models";
}

void check_row(const float* row, std::int64_t vocab, const nlohmann::json& step) {
  INFO("position " << step.at("pos"));
  REQUIRE(std::max_element(row, row + vocab) - row == step.at("argmax").get<std::ptrdiff_t>());
  double sum = 0;
  for (std::int64_t c = 0; c < vocab; ++c) sum += std::exp(static_cast<double>(row[c]));
  const double lse = std::log(sum);
  REQUIRE(std::abs(lse - step.at("logsumexp").get<double>()) < 1e-4);
  REQUIRE(std::abs(lse - static_cast<double>(row[step.at("argmax").get<std::size_t>()]) -
                   step.at("nll_of_argmax").get<double>()) < 1e-4);
  for (const auto& [id, logit] : step.at("top5").get<std::vector<std::pair<std::size_t, double>>>())
    REQUIRE(std::abs(static_cast<double>(row[id]) - logit) < 1e-4);
}

}  // namespace

TEST_CASE("stories260k: 200 greedy tokens are those of the float64 run", "[proof]") {
  const auto models = models_dir();
  if (!models) EPISODIC_SKIP("the models of ../shared are not here");
  std::ifstream in(*models / "stories260k_greedy_float64.json");
  const auto expected = nlohmann::json::parse(in);
  const auto tokens = expected.at("greedy_tokens").get<std::vector<std::int64_t>>();
  Decoder model = Decoder::load(*models / "stories260k");
  const std::int64_t vocab = model.config().vocab_size;

  std::int64_t token = tokens.at(0);
  for (const auto& step : expected.at("steps")) {
    REQUIRE(token == step.at("in").get<std::int64_t>());
    const LogitsView logits = model.forward({&token, 1});
    const float* row = logits.floats().data();
    check_row(row, vocab, step);
    token = std::max_element(row, row + vocab) - row;
    REQUIRE(token == tokens.at(step.at("pos").get<std::size_t>() + 1));
  }

  // and the same tokens fed as one chunk
  model.reset();
  const LogitsView logits = model.forward(std::span(tokens).first(tokens.size() - 1));
  for (const auto& step : expected.at("steps"))
    check_row(logits.floats().data() + step.at("pos").get<std::int64_t>() * vocab, vocab, step);
}
