// SPDX-License-Identifier: Apache-2.0
// The golden cases through the `episodic trace` program, on the host and on the emulated device,
// against an independent float64 oracle. Every integer and list must be equal, every array within
// the case's tolerance.
#include "support/compare.hpp"
#include "support/sampled.hpp"
#include "support/shared.hpp"
#include "support/test.hpp"

#include <unistd.h>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "episodic/model/safetensors.hpp"
#include "support/temp_dir.hpp"
#include "tools/program.hpp"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json load(const fs::path& path) {
  std::ifstream in(path);
  REQUIRE(in);
  return Json::parse(in);
}

/// max |x - e| / max(1, |e|) for one axis; for more, max |x - e| / the row's largest |e|.
double error_of(const episodic::StoredTensor& got, const episodic::StoredTensor& expected) {
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

/// How often kernels of the emulated device ran, by their names with arguments.
using Launches = std::map<std::string, std::int64_t>;

/// Of all instances of a kernel.
std::int64_t launches_of(const Launches& launches, const std::string& kernel) {
  std::int64_t n = 0;
  for (const auto& [name, count] : launches) {
    const auto at = name.find("::" + kernel);
    const auto end = at + 2 + kernel.size();
    if (at != std::string::npos && end < name.size() && (name[end] == '(' || name[end] == '<'))
      n += count;
  }
  return n;
}

/// `trace` of a folder's case. \param name of the program in the build's bin \param device --device
/// \param launches written, of the emulated device
/// \return whether it succeeded
bool trace(const fs::path& folder, const fs::path& out, const std::string& name,
           const std::string& device, const std::string& model = "", Launches* launches = nullptr) {
  const fs::path counts = out.string() + ".launches";
  const program::Run run = program::run_episodic(
      "trace --device " + device + model + " --case " +
          program::quoted((folder / "case.json").string()) + " --out " +
          program::quoted(out.string()),
      "EPISODIC_EMULATED_LAUNCHES=" + program::quoted(counts.string()), name.c_str());
  if (run.status != 0) UNSCOPED_INFO(run.err);
  std::ifstream in(counts);
  std::string kernel;
  for (std::int64_t n = 0; launches && in >> n && std::getline(in, kernel);)
    (*launches)[kernel] += n;
  in.close();
  fs::remove(counts);
  return run.status == 0;
}

/// \param program its name \param device, launches as of trace
/// \return empty if the case passes, else what differs
std::string check_case(const fs::path& folder, const fs::path& shared,
                       const std::string& program = "episodic", const std::string& device = "cpu",
                       Launches* launches = nullptr) {
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
  std::string differs;
  if (!trace(folder, out, program, device, model, launches)) return "the trace program failed";
  {
    const Json got = load(out / "trace.json"), expected = load(folder / "expected.json");
    for (const auto& [key, value] : expected.items())
      if (!got.contains(key) || got[key] != value) differs += " trace.json:" + key;
    const episodic::SafetensorsFile x(out / "trace.safetensors"),
        e(folder / "expected.safetensors");
    for (const episodic::StoredTensor& tensor : e.tensors()) {
      const episodic::StoredTensor* mine = x.find(tensor.name);
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

TEST_CASE("golden cases of kind em pass on the emulated device", "[golden][device]") {
  const auto shared = shared_dir();
  if (!shared || !fs::exists(*shared / "golden")) EPISODIC_SKIP("../shared/golden is not there");
  std::vector<fs::path> all;
  for (const fs::directory_entry& entry : fs::directory_iterator(*shared / "golden"))
    // The shared models' texts are long: they wait for a device.
    if (fs::exists(entry.path() / "model")) all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  CHECK(all.size() >= 12);
  for (const fs::path& path : episodic_test::sampled(all, all.size() / 3)) {
    INFO(path.filename().string());
    Launches launches;
    CHECK(check_case(path, *shared, "episodic_emulated", "cuda", &launches) == "");
    const Json test = load(path / "case.json");
    const auto segmenter = test["memory"].value("segmenter", "surprise");
    const bool by_keys = segmenter == "k_similarity" || segmenter == "gaussian";
    CHECK((launches_of(launches, "KeySegmenterKernel") > 0) == by_keys);
    CHECK(launches_of(launches, "CloseEventsKernel") > 0);
  }
}

TEST_CASE("golden cases without a model pass through the kernels of the emulated device",
          "[golden][device]") {
  const auto shared = shared_dir();
  if (!shared || !fs::exists(*shared / "golden")) EPISODIC_SKIP("../shared/golden is not there");
  std::map<std::string, int> cases;
  for (const fs::directory_entry& entry : fs::directory_iterator(*shared / "golden")) {
    if (!fs::exists(entry.path() / "inputs.safetensors")) continue;
    INFO(entry.path().filename().string());
    const Json test = load(entry.path() / "case.json"),
               expected = load(entry.path() / "expected.json");
    Launches launches, of_host;
    CHECK(check_case(entry.path(), *shared, "episodic_emulated", "cuda", &launches) == "");
    CHECK(check_case(entry.path(), *shared, "episodic_emulated", "cpu", &of_host) == "");
    CHECK(of_host.empty());
    const auto ran = [&](const char* kernel) { return launches_of(launches, kernel); };
    ++cases[test["kind"]];
    if (test["kind"] == "hem") {
      // up to 256 channels are one launch; the calibrated gamma's boundaries are another
      CHECK(ran("KeySegmenterKernel") == (test.contains("calibrate_to") ? 2 : 1));
      CHECK(ran("CloseEventsKernel") == 1);
    } else if (test["kind"] == "epman") {
      CHECK(ran("ScoreEventsKernel") == 1);
      CHECK(ran("RecallTopKernel") == (test["mode"] == "exact" ? 0 : 1));
      // attention of the values, and of ones
      CHECK(ran("EventToBlockKernel") == 2);
      CHECK(ran("RowsKernel") == 2);
      CHECK(ran("FloatAttentionKernel") == 2);
    } else {
      std::int64_t recalling = 0, forgetting = 0;
      for (const Json& step : expected["steps"]) {
        recalling += !step["short_term_recalled"].empty() || !step["long_term_recalled"].empty();
        forgetting += !step["forgotten"].empty();
      }
      REQUIRE(recalling > 0);
      REQUIRE(forgetting > 0);
      CHECK(ran("RowMassKernel") == recalling);
      CHECK(ran("EventMassKernel") == recalling);
      CHECK(ran("ReceiveMassesKernel") == recalling);
      CHECK(ran("ForgetKernel") == forgetting);
    }
  }
  for (const auto& [kind, least] :
       {std::pair("hem", 3), std::pair("epman", 3), std::pair("memoria", 2)})
    CHECK(cases[kind] >= least);
}

TEST_CASE("golden cases pass on a CUDA device", "[golden][device]") {
  const auto shared = shared_dir();
  if (!shared || !fs::exists(*shared / "golden")) EPISODIC_SKIP("../shared/golden is not there");
  const TempDir dir;
  const program::Run probe =
      program::run_episodic("trace --device cuda --case '" +
                            (*shared / "golden/hem01_k_similarity_sequence/case.json").string() +
                            "' --out '" + (dir / "probe").string() + "'");
  for (const char* none : {"no CUDA path", "no driver", "no device"})
    if (probe.status != 0 && probe.err.find(none) != std::string::npos)
      EPISODIC_SKIP("no CUDA device, or no path to one in this build");
  int cases = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(*shared / "golden")) {
    if (!fs::exists(entry.path() / "case.json")) continue;
    INFO(entry.path().filename().string());
    CHECK(check_case(entry.path(), *shared, "episodic", "cuda") == "");
    ++cases;
  }
  CHECK(cases >= 23);
}

// -- made-up cases: the device's kernels beside the host's classes --

namespace {

/// A case's folder, whose expected values are what the host says.
class MadeUp {
 public:
  explicit MadeUp(Json test) : test_(std::move(test)) {}

  MadeUp& tensor(const char* name, std::vector<std::int64_t> shape, std::vector<float> values) {
    tensors_.push_back({name, std::move(shape), std::move(values)});
    return *this;
  }
  /// Normal numbers.
  MadeUp& tensor(const char* name, std::vector<std::int64_t> shape, std::mt19937& random) {
    std::int64_t n = 1;
    for (const std::int64_t length : shape) n *= length;
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& x : values) x = normal(random);
    return tensor(name, std::move(shape), std::move(values));
  }

  /// \return empty if both say the same, else what differs
  std::string check() const {
    const TempDir dir;
    const fs::path folder = dir / "case";
    fs::create_directory(folder);
    std::ofstream(folder / "case.json") << test_;
    std::vector<episodic::TensorToWrite> inputs;
    for (const Input& t : tensors_)
      inputs.push_back({t.name, episodic::TensorType::f32, t.shape, t.values.data()});
    episodic::write_safetensors(folder / "inputs.safetensors", inputs);
    if (!trace(folder, dir / "host", "episodic_emulated", "cpu")) return "the host failed";
    for (const char* end : {".json", ".safetensors"})
      fs::rename(dir / "host" / (std::string("trace") + end),
                 folder / (std::string("expected") + end));
    return check_case(folder, {}, "episodic_emulated", "cuda");
  }

 private:
  struct Input {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  Json test_;
  std::vector<Input> tensors_;
};

}  // namespace

TEST_CASE("made-up keys are cut on the emulated device where the host cuts them",
          "[golden][device]") {
  std::mt19937 random(151);
  struct Shape {
    std::int64_t tokens, layers, heads, d, n_init, min_block, max_block;
  };
  for (const Shape& s :
       {Shape{0, 1, 1, 4, 0, 1, 8}, Shape{1, 1, 1, 1, 0, 1, 1}, Shape{3, 2, 1, 5, 7, 1, 2},
        Shape{77, 3, 2, 3, 4, 2, 9}, Shape{60, 2, 3, 67, 1, 1, 16}})
    for (const auto& [method, level] :
         {std::pair("k_similarity", s.tokens % 2 == 0 ? "head" : "sequence"),
          std::pair("gaussian", s.tokens % 2 == 0 ? "sequence" : "head")}) {
      INFO(s.tokens << " tokens, " << method << " of a " << level);
      Json test{{"kind", "hem"},
                {"method", method},
                {"level", level},
                {"gamma", 0.7},
                {"min_count", 2},
                {"var_floor", 0.05},
                {"n_init", s.n_init},
                {"min_block", s.min_block},
                {"max_block", s.max_block},
                {"tolerance", {{"signal", 1e-5}, {"threshold", 1e-5}}}};
      if (s.tokens == 77) test["calibrate_to"] = 5;
      CHECK(MadeUp(test).tensor("keys", {s.tokens, s.layers, s.heads, s.d}, random).check() == "");
    }
}

TEST_CASE("made-up events are weighed and attended on the emulated device as on the host",
          "[golden][device]") {
  std::mt19937 random(152);
  struct Shape {
    std::int64_t n, start, heads, kv_heads, d, n_init, n_local, width;
    std::vector<std::array<std::int64_t, 2>> events;
  };
  const std::vector<Shape> shapes{
      {1, 0, 1, 1, 2, 0, 1, 1, {}},          // nothing but itself
      {3, 5, 2, 1, 6, 2, 40, 3, {}},         // all in the window
      {2, 30, 3, 3, 10, 0, 4, 5, {{0, 1}}},  // pending for the most part
      {5, 61, 6, 2, 24, 3, 9, 33, {{3, 4}, {4, 19}, {19, 22}, {22, 40}}},
      {7, 90, 4, 4, 256, 1, 16, 8, {{1, 30}, {30, 31}, {31, 77}}},
      {2, 40, 4, 1, 8, 44, 6, 4, {}},  // sinks beyond the window
  };
  for (const Shape& s : shapes)
    for (const char* mode : {"exact", "narrow", "broad"}) {
      if (s.events.empty() && mode[0] != 'n') continue;  // nothing to weigh
      INFO(s.events.size() << " events, " << s.d << " channels, " << mode);
      const auto n_events = static_cast<std::int64_t>(s.events.size());
      const double tolerance = 1e-5;
      Json test{
          {"kind", "epman"},
          {"mode", mode},
          {"K", 1},
          {"start", s.start},
          {"n_init", s.n_init},
          {"n_local", s.n_local},
          {"rope_theta", 500.0},
          {"events", s.events},
          {"tolerance",
           {{"score", tolerance}, {"weight", tolerance}, {"out", tolerance}, {"mass", tolerance}}}};
      CHECK(MadeUp(test)
                .tensor("q", {s.n, s.heads, s.d}, random)
                .tensor("k", {s.start + s.n, s.kv_heads, s.d}, random)
                .tensor("v", {s.start + s.n, s.kv_heads, s.d}, random)
                .tensor("query_encoding", {s.width}, random)
                .tensor("event_encodings", {n_events, s.width}, random)
                .check() == "");
    }
}

TEST_CASE("made-up engrams live on the emulated device as long as on the host",
          "[golden][device]") {
  std::mt19937 random(153);
  struct Shape {
    std::int64_t steps, n, width, n_short, n_long, capacity;
  };
  for (const Shape& s : {Shape{1, 1, 1, 1, 1, 1}, Shape{4, 0, 3, 2, 2, 5}, Shape{19, 3, 5, 2, 3, 4},
                         Shape{40, 1, 2, 0, 1, 1}}) {
    INFO(s.steps << " steps of " << s.n);
    // Nothing, little and more than one: of several heads and layers.
    std::vector<float> attention(static_cast<std::size_t>(s.steps * s.steps * s.n));
    for (float& w : attention)
      w = random() % 3 == 0 ? 0.0f : static_cast<float>(random() % 1000) * 2e-3f;
    const Json test{{"kind", "memoria"}, {"N_stm", s.n_short},
                    {"N_ltm", s.n_long}, {"stm_capacity", s.capacity},
                    {"N_depth", 3},      {"initial_lifespan", 4},
                    {"alpha", 1.5},      {"tolerance", {{"lifespan", 1e-5}}}};
    CHECK(MadeUp(test)
              .tensor("engrams", {s.steps, s.n, s.width}, random)
              .tensor("attention", {s.steps, s.steps * s.n}, attention)
              .check() == "");
  }
}

TEST_CASE("cases that make no sense, or that no kernel takes, are refused in one line",
          "[golden]") {
  std::mt19937 random(154);
  const Json hem{{"kind", "hem"}, {"method", "gaussian"}, {"level", "head"},
                 {"gamma", 1},    {"min_count", 1},       {"var_floor", 0.1},
                 {"n_init", 0},   {"min_block", 1},       {"max_block", 4}};
  const Json epman{{"kind", "epman"},
                   {"mode", "narrow"},
                   {"K", 2},
                   {"start", 9},
                   {"n_init", 1},
                   {"n_local", 4},
                   {"rope_theta", 1e4},
                   {"events", Json::array({Json::array({1, 3})})}};
  const Json memoria{{"kind", "memoria"}, {"N_stm", 1},   {"N_ltm", 1},
                     {"stm_capacity", 2}, {"N_depth", 1}, {"initial_lifespan", 2},
                     {"alpha", 1}};
  struct Bad {
    Json test;
    const char *key, *device;
    Json value;
    std::string says;
    std::int64_t d = 8, width = 4;  // of heads and of encodings
    float odd = 0.5f;               // one of the inputs
  };
  const auto with = [](Json test, const char* key, const Json& value) {
    if (key[0] != 0) test[key] = value;
    return test;
  };
  const std::vector<Bad> all{
      {hem, "max_block", "cpu", 0, "max_block is 0, must be at least 1"},
      {hem, "min_block", "cuda", 0, "min_block is 0, must be at least 1"},
      {hem, "min_count", "cuda", -1, "min_count is -1, must be at least 0"},
      {hem, "var_floor", "cuda", 0, "var_floor must be a positive number"},
      {hem, "level", "cuda", "layer", "level must be \"sequence\" or \"head\""},
      {hem, "", "cuda", {}, "tensor 'keys' has an element that is not finite", 8, 4, NAN},
      {epman, "K", "cuda", 0, "K is 0, must be at least 1"},
      {epman, "n_local", "cpu", 0, "n_local is 0, must be at least 1"},
      {epman, "mode", "cuda", "wide", "mode must be \"exact\", \"narrow\" or \"broad\""},
      {epman, "events", "cuda", Json::array({Json::array({2, 3})}),
       "events must lie one behind the other"},
      {epman, "", "cuda", {}, "heads of 258 channels, the kernels take 256; use --device cpu", 258},
      {epman,
       "",
       "cuda",
       {},
       "encodings of 30000 numbers, the kernels take 24576; use --device cpu",
       8,
       30000},
      {memoria, "stm_capacity", "cuda", -1, "memoria: "},
      {memoria,
       "",
       "cuda",
       {},
       "tensor 'attention' has an element that is not at least 0",
       8,
       4,
       -0.5f},
      {Json{{"kind", "other"}}, "", "cuda", {}, "known are: em, hem, epman, memoria"},
  };
  for (const Bad& bad : all) {
    INFO(bad.says);
    const TempDir dir;
    std::ofstream(dir / "case.json") << with(bad.test, bad.key, bad.value);
    const auto numbers = [&](std::int64_t n) {
      std::vector<float> x(static_cast<std::size_t>(n), 0.25f);
      x.front() = bad.odd;
      return x;
    };
    const std::vector<float> keys = numbers(10 * bad.d), query = numbers(bad.width),
                             engrams = numbers(3), attention = numbers(9);
    const auto f32 = episodic::TensorType::f32;
    episodic::write_safetensors(
        dir / "inputs.safetensors",
        std::vector<episodic::TensorToWrite>{{"keys", f32, {10, 1, 1, bad.d}, keys.data()},
                                             {"q", f32, {1, 1, bad.d}, keys.data()},
                                             {"k", f32, {10, 1, bad.d}, keys.data()},
                                             {"v", f32, {10, 1, bad.d}, keys.data()},
                                             {"query_encoding", f32, {bad.width}, query.data()},
                                             {"event_encodings", f32, {1, bad.width}, query.data()},
                                             {"engrams", f32, {3, 1, 1}, engrams.data()},
                                             {"attention", f32, {3, 3}, attention.data()}});
    const program::Run run =
        program::run_episodic("trace --device " + std::string(bad.device) + " --case " +
                                  program::quoted((dir / "case.json").string()) + " --out " +
                                  program::quoted((dir / "out").string()),
                              "", "episodic_emulated");
    CHECK(run.status == 1);
    CHECK(program::one_line(run.err));
    CHECK(run.err.find(bad.says) != std::string::npos);
    if (run.err.find(bad.says) == std::string::npos) CHECK(run.err == "");
    CHECK_FALSE(fs::exists(dir / "out" / "trace.json"));
  }
}
