// SPDX-License-Identifier: Apache-2.0
// The golden cases of kind em through the `episodic trace` program, against an independent float64
// oracle. Every integer and list must be equal, every array within the case's tolerance.
#include "support/compare.hpp"
#include "support/shared.hpp"
#include "support/test.hpp"

#include <unistd.h>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "episodic/model/safetensors.hpp"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json load(const fs::path& path) {
  std::ifstream in(path);
  REQUIRE(in);
  return Json::parse(in);
}

/// max |x - e| / max(1, |e|) for one axis; for more, max |x - e| / the row's largest |e|.
double error_of(const episodic::TensorView& got, const episodic::TensorView& expected) {
  const auto* x = reinterpret_cast<const float*>(got.data);
  const auto* e = reinterpret_cast<const float*>(expected.data);
  const std::int64_t n = expected.elements();
  const std::int64_t row = expected.shape.size() > 1 ? expected.shape.back() : 1;
  double worst = 0;
  for (std::int64_t first = 0; first < n; first += row) {
    double largest = row > 1 ? 1e-30 : 1.0;
    for (std::int64_t i = first; i < first + row; ++i)
      if (std::isfinite(e[i])) largest = std::max(largest, static_cast<double>(std::fabs(e[i])));
    for (std::int64_t i = first; i < first + row; ++i) {
      if (!std::isfinite(e[i])) {
        if (std::isnan(e[i]) ? !std::isnan(x[i]) : x[i] != e[i]) return INFINITY;
        continue;
      }
      const double error = std::fabs(static_cast<double>(x[i]) - e[i]) / largest;
      worst = worse_of(worst, error);
    }
  }
  return worst;
}

/// \param program of the build's bin \param device --device
/// \return empty if the case passes, else what differs
std::string check_case(const fs::path& folder, const fs::path& shared,
                       const std::string& program = "episodic", const std::string& device = "cpu") {
  const Json test = load(folder / "case.json");
  std::string model;  // kinds other than em come without one
  if (test["kind"] == "em") {
    const auto name = test["model"].get<std::string>();
    model =
        " --model '" + (name.rfind("data/", 0) == 0 ? shared / name : folder / name).string() + "'";
  }
  const fs::path out =
      fs::temp_directory_path() /
      ("episodic-golden-" + std::to_string(::getpid()) + folder.filename().string());
  const std::string command = "'" EPISODIC_BINARY_DIR "/bin/" + program + "' trace --device " +
                              device + model + " --case '" + (folder / "case.json").string() +
                              "' --out '" + out.string() + "'";
  std::string differs;
  if (std::system(command.c_str()) != 0) return "the trace program failed";
  {
    const Json got = load(out / "trace.json"), expected = load(folder / "expected.json");
    for (const auto& [key, value] : expected.items())
      if (!got.contains(key) || got[key] != value) differs += " trace.json:" + key;
    const episodic::SafetensorsFile x(out / "trace.safetensors"),
        e(folder / "expected.safetensors");
    for (const episodic::TensorView& tensor : e.tensors()) {
      const episodic::TensorView* mine = x.find(tensor.name);
      if (!mine || mine->type != tensor.type || mine->shape != tensor.shape) {
        differs += " " + tensor.name + ": missing or of another shape";
      } else if (tensor.type == episodic::TensorType::f32) {
        const double error = error_of(*mine, tensor);
        if (!(error <= test["tolerance"][tensor.name].get<double>()))
          differs += " " + tensor.name + ": error " + std::to_string(error);
      } else if (std::memcmp(mine->data, tensor.data, static_cast<std::size_t>(tensor.bytes)) !=
                 0) {
        differs += " " + tensor.name + ": not equal";
      }
    }
  }
  fs::remove_all(out);
  return differs;
}

}  // namespace

TEST_CASE("golden cases of kind em pass through the trace program", "[golden]") {
  const auto shared = shared_dir();
  if (!shared || !fs::exists(*shared / "golden")) EPISODIC_SKIP("../shared/golden is not there");
  int cases = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(*shared / "golden")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("em", 0) != 0 || !fs::exists(entry.path() / "case.json")) continue;
    if (load(entry.path() / "case.json")["kind"] != "em") continue;
    INFO(name);
    CHECK(check_case(entry.path(), *shared) == "");
    ++cases;
  }
  CHECK(cases >= 15);
}

TEST_CASE("golden cases without a model pass: keys, reweighting, association", "[golden]") {
  const auto shared = shared_dir();
  if (!shared || !fs::exists(*shared / "golden")) EPISODIC_SKIP("../shared/golden is not there");
  int cases = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(*shared / "golden")) {
    if (!fs::exists(entry.path() / "inputs.safetensors")) continue;
    INFO(entry.path().filename().string());
    CHECK(check_case(entry.path(), *shared) == "");
    ++cases;
  }
  CHECK(cases >= 8);
}

TEST_CASE("golden cases pass on the emulated device", "[golden]") {
  const auto shared = shared_dir();
  if (!shared || !fs::exists(*shared / "golden")) EPISODIC_SKIP("../shared/golden is not there");
  // One of each segmenter, with short texts; em15's heads are padded on a device.
  for (const char* name : {"em04_mqa_intra_inter_two_neighbours", "em07_wide_gamma2",
                           "em15_key_similarity_segmenter"}) {
    INFO(name);
    CHECK(check_case(*shared / "golden" / name, *shared, "episodic_emulated", "cuda") == "");
  }
}
