#include "topology/synthetic.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include "core/error.h"
#include "topology/building.h"
#include "topology/rates.h"
#include "topology/replicate.h"

namespace ropewalk::topology {
namespace {

constexpr std::size_t kMaxText = 4096;
constexpr double kDefaultSmp = 22;
constexpr double kDefaultNic = 50;

struct Part {
  std::size_t column = 0;  ///< from 1
  std::optional<int> count{};
  std::string word{};
  std::string model{};
  std::optional<double> rate{};
};

struct Parsed {
  int hosts = 1;
  std::vector<Part> parts{};
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Parsed run() {
    if (text_.size() > kMaxText) {
      throw Error(Errc::kInvalidArgument, "synthetic machine: {} characters; {} is the limit",
                  text_.size(), kMaxText);
    }
    skip_spaces();
    const std::size_t open = text_.find('(');
    if (open != std::string_view::npos) {
      made_.hosts = count().value_or(0);
      if (made_.hosts == 0) refuse("the number of hosts is missing");
      if (peek() != 'x') refuse("expected x and (");
      ++at_;
      if (peek() != '(') refuse("expected (");
      ++at_;
      parts(/*in_brackets=*/true);
      if (peek() != ')') refuse("( is not closed");
      ++at_;
    }
    parts(/*in_brackets=*/false);
    if (made_.parts.empty()) refuse("no part");
    return std::move(made_);
  }

  [[noreturn]] void refuse(std::size_t column, const std::string& what) const {
    throw Error(Errc::kInvalidArgument, "synthetic machine \"{}\", column {}: {}", text_, column,
                what);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { refuse(at_ + 1, what); }

  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_spaces() {
    while (peek() == ' ') ++at_;
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  std::optional<int> count() {
    if (!is_digit(peek())) return std::nullopt;
    const std::size_t begin = at_;
    while (is_digit(peek())) ++at_;
    int value = 0;
    const auto [end, error] = std::from_chars(text_.data() + begin, text_.data() + at_, value);
    if (error != std::errc() || value < 1 || static_cast<std::size_t>(value) > kMaxNodes) {
      refuse(begin + 1, fmt::format("a count is between 1 and {}", kMaxNodes));
    }
    return value;
  }

  double rate() {
    const std::size_t begin = at_;
    while (is_digit(peek()) || peek() == '.') ++at_;
    double value = 0;
    const auto [end, error] = std::from_chars(text_.data() + begin, text_.data() + at_, value);
    if (error != std::errc() || end != text_.data() + at_ || !std::isfinite(value)) {
      refuse(begin + 1, "expected a rate, as 25 (GB/s) or 200Gb (Gbit/s)");
    }
    if (text_.substr(at_).starts_with("GB")) {
      at_ += 2;
    } else if (text_.substr(at_).starts_with("Gb")) {
      at_ += 2;
      value /= 8;
    }
    if (!(value >= kMinCapacity && value <= kMaxCapacity)) {
      refuse(begin + 1,
             fmt::format("a rate is between {} and {} GB/s", kMinCapacity, kMaxCapacity));
    }
    return value;
  }

  void parts(bool in_brackets) {
    while (true) {
      skip_spaces();
      if (at_ == text_.size() || (in_brackets && peek() == ')')) return;
      part();
      if (peek() != ' ' && peek() != '\0' && !(in_brackets && peek() == ')')) {
        refuse("expected a space between parts");
      }
    }
  }

  void part() {
    Part found{.column = at_ + 1};
    found.count = count();
    const std::size_t begin = at_;
    while (is_letter(peek()) || is_digit(peek()) || peek() == '-') ++at_;
    found.word = text_.substr(begin, at_ - begin);
    if (found.word.empty()) refuse("expected a word, as gpu, nvswitch, nic");
    if (peek() == ':') {
      ++at_;
      const std::size_t model = at_;
      while (is_letter(peek()) || is_digit(peek()) || peek() == '-' || peek() == '_') ++at_;
      found.model = text_.substr(model, at_ - model);
      if (found.model.empty()) refuse("expected a model after :");
    }
    if (peek() == '@') {
      ++at_;
      found.rate = rate();
    }
    expand(found);
  }

  /// Replaces a preset's name by its parts.
  void expand(const Part& found) {
    const auto known = std::find_if(presets().begin(), presets().end(), [&](const Preset& preset) {
      return preset.name == found.word;
    });
    if (known == presets().end()) {
      made_.parts.push_back(found);
      return;
    }
    if (found.count || found.rate || !found.model.empty()) {
      refuse(found.column, fmt::format("{} takes no count, model or rate", found.word));
    }
    for (Part part : Parser(known->parts).run().parts) {
      part.column = found.column;
      made_.parts.push_back(std::move(part));
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  Parsed made_;
};

struct GpuModel {
  std::string_view word;
  int lanes;
};
constexpr std::array<GpuModel, 8> kGpuModels{{{"P100", 4},
                                              {"V100", 6},
                                              {"A100", 12},
                                              {"H100", 18},
                                              {"H200", 18},
                                              {"B200", 18},
                                              {"B100", 18},
                                              {"B300", 18}}};

/// One host, from its parts.
class HostBuilder {
 public:
  HostBuilder(const Parser& parser, const std::vector<Part>& parts, std::string_view text)
      : parser_(parser), builder_(start(text)) {
    for (const Part& part : parts) sort(part);
  }

  Topology run() {
    check();
    make_cpus();
    make_switches();
    make_gpus();
    for (const Part& part : fabrics_) make_fabric(part);
    make_nics();
    return Topology(std::move(builder_).finish());
  }

  [[nodiscard]] bool wants_rails() const { return rails_; }
  [[nodiscard]] bool wants_network() const { return network_ || rails_; }
  [[nodiscard]] bool has_nics() const { return nic_.has_value(); }

 private:
  static Description start(std::string_view text) {
    Description description;
    description.name = "synthetic";
    description.title = std::string(text);
    description.sources = {fmt::format("synthetic machine \"{}\"", text)};
    return description;
  }

  void once(std::optional<Part>& slot, const Part& part) {
    if (slot) parser_.refuse(part.column, fmt::format("{} twice", part.word));
    slot = part;
  }

  void plain(const Part& part) {
    if (part.count || part.rate || !part.model.empty()) {
      parser_.refuse(part.column, fmt::format("{} takes no count, model or rate", part.word));
    }
  }

  void sort(const Part& part) {
    const std::string& word = part.word;
    if (!part.model.empty() && word != "gpu") {
      parser_.refuse(part.column, fmt::format("{} takes no model", word));
    }
    if (word == "gpu") {
      if (part.rate) parser_.refuse(part.column, "gpu takes no rate: nvswitch or nvmesh does");
      once(gpu_, part);
    } else if (word == "cpu") {
      once(cpu_, part);
    } else if (word == "nic") {
      once(nic_, part);
    } else if (word == "pcie") {
      if (part.rate) parser_.refuse(part.column, "pcie takes no rate: gen3 to gen6 say it");
      if (switches_.size() == 2) parser_.refuse(part.column, "pcie a third time");
      switches_.push_back(part);
    } else if (word == "nvswitch" || word == "nvmesh" || word == "nvring" || word == "nvcube") {
      if (word != "nvswitch" && part.count) {
        parser_.refuse(part.column, fmt::format("{} takes no count", word));
      }
      if (!fabrics_.empty()) parser_.refuse(part.column, "a second GPU fabric");
      fabrics_.push_back(part);
    } else if (word.size() == 4 && word.starts_with("gen") && word[3] >= '1' && word[3] <= '6') {
      plain(part);
      gen_ = word[3] - '0';
    } else if (word == "rails") {
      plain(part);
      rails_ = true;
    } else if (word == "net") {
      plain(part);
      network_ = true;
    } else {
      std::string names;
      for (const Preset& preset : presets()) names += fmt::format(", {}", preset.name);
      parser_.refuse(part.column,
                     fmt::format("unknown word \"{}\"; known are gpu, nvswitch, nvmesh, nvring, "
                                 "nvcube, cpu, pcie, nic, gen1 to gen6, rails, net{}",
                                 word, names));
    }
  }

  /// What the counts would make must fit a Topology before anything is made.
  void check() {
    const auto count = [](const std::optional<Part>& part, int fallback) {
      return static_cast<std::size_t>(part ? part->count.value_or(1) : fallback);
    };
    const std::size_t gpus = count(gpu_, 0);
    const std::size_t cpus = count(cpu_, 1);
    std::size_t nodes = gpus + cpus + count(nic_, 0);
    for (const Part& each : switches_) nodes += static_cast<std::size_t>(each.count.value_or(1));
    std::size_t links = 2 * nodes + cpus * cpus;
    for (const Part& each : fabrics_) {
      if (gpus == 0) parser_.refuse(each.column, fmt::format("{} needs GPUs", each.word));
      if (each.word == "nvcube" && gpus != 8) parser_.refuse(each.column, "nvcube needs 8 GPUs");
      const auto chips = static_cast<std::size_t>(each.count.value_or(1));
      if (each.word == "nvswitch") nodes += chips;
      links += each.word == "nvmesh" ? gpus * gpus : 2 * gpus * chips;
    }
    if (nodes > kMaxNodes || links > kMaxLinks) {
      parser_.refuse(1, fmt::format("{} nodes and {} links; {} and {} are the limits", nodes, links,
                                    kMaxNodes, kMaxLinks));
    }
  }

  void make_cpus() {
    const int count = cpu_ ? cpu_->count.value_or(1) : 1;
    for (int i = 0; i < count; ++i) {
      cpus_.push_back(builder_.add({.kind = NodeKind::kCpu, .numa = i}));
      for (int k = 0; k < i; ++k) {
        builder_.join({.source = cpus_[static_cast<std::size_t>(k)],
                       .destination = cpus_.back(),
                       .type = LinkType::kSmp,
                       .capacity = cpu_->rate.value_or(kDefaultSmp)});
      }
    }
    above_ = cpus_;
  }

  /// The parent of the i-th of n devices.
  [[nodiscard]] NodeIndex parent(std::size_t i, std::size_t n) const {
    return above_[i * above_.size() / n];
  }

  NodeIndex hang(Node node, std::size_t i, std::size_t n) {
    const NodeIndex above = parent(i, n);
    node.numa = builder_.node(above).numa;
    const NodeIndex made = builder_.add(std::move(node));
    builder_.join_pcie(made, above, gen_, 16);
    return made;
  }

  void make_switches() {
    for (const Part& level : switches_) {
      const auto count = static_cast<std::size_t>(level.count.value_or(1));
      std::vector<NodeIndex> made;
      for (std::size_t i = 0; i < count; ++i) {
        made.push_back(hang({.kind = NodeKind::kPcieSwitch}, i, count));
      }
      above_ = std::move(made);
    }
  }

  void make_gpus() {
    const auto count = static_cast<std::size_t>(gpu_ ? gpu_->count.value_or(1) : 0);
    for (std::size_t i = 0; i < count; ++i) {
      gpus_.push_back(hang(
          {.kind = NodeKind::kGpu, .rank = static_cast<int>(i), .model = gpu_->model}, i, count));
    }
  }

  void make_nics() {
    const auto count = static_cast<std::size_t>(nic_ ? nic_->count.value_or(1) : 0);
    for (std::size_t i = 0; i < count; ++i) {
      hang({.kind = NodeKind::kNic, .net_gbps = nic_->rate.value_or(kDefaultNic)}, i, count);
    }
  }

  /// Lanes of a GPU; 18, as of an H100, where the model does not say.
  int lanes() {
    for (const GpuModel& known : kGpuModels) {
      if (gpu_->model.find(known.word) != std::string::npos) return known.lanes;
    }
    builder_.note("NVLink of a GPU whose lanes are not known: 18 of 25 GB/s, as of an H100");
    return 18;
  }

  void nvlink(NodeIndex from, NodeIndex to, double share, std::optional<double> rate) {
    const LaneRates lane = nvlink_lane(compute_capability(gpu_->model).value_or(90));
    Link link{.source = from, .destination = to, .type = LinkType::kNvlink};
    if (rate) {
      link.capacity = *rate;
    } else {
      link.capacity = lane.capacity * share;
      link.effective = lane.effective * share;
      if (std::floor(share) == share) link.lanes = static_cast<int>(share);
    }
    builder_.join(link);
  }

  void make_fabric(const Part& part) {
    const std::size_t count = gpus_.size();
    if (part.word == "nvswitch") {
      const int chips = part.count.value_or(1);
      const double share = part.rate ? 0 : static_cast<double>(lanes()) / chips;
      std::vector<NodeIndex> made;
      for (int i = 0; i < chips; ++i) made.push_back(builder_.add({.kind = NodeKind::kNvSwitch}));
      for (const NodeIndex gpu : gpus_) {
        for (const NodeIndex chip : made) {
          nvlink(gpu, chip, share, part.rate ? std::optional(*part.rate / chips) : std::nullopt);
        }
      }
    } else if (part.word == "nvmesh") {
      const double share = part.rate || count < 2
                               ? 0
                               : static_cast<double>(lanes()) / static_cast<double>(count - 1);
      for (std::size_t a = 0; a < count; ++a) {
        for (std::size_t b = a + 1; b < count; ++b) nvlink(gpus_[a], gpus_[b], share, part.rate);
      }
    } else if (part.word == "nvring") {
      if (count < 2) parser_.refuse(part.column, "nvring needs 2 GPUs");
      const double share = part.rate ? 0 : static_cast<double>(lanes()) / (count == 2 ? 1 : 2);
      for (std::size_t i = 0; i + (count == 2 ? 1 : 0) < count; ++i) {
        nvlink(gpus_[i], gpus_[(i + 1) % count], share, part.rate);
      }
    } else {
      make_cube(part);
    }
  }

  /// NVIDIA's DGX-1: 4 lanes of a P100, each to another GPU; 6 of a V100, two to the nearer ones.
  /// Source: `nvidia-smi topo -m` of those machines.
  void make_cube(const Part& part) {
    struct Pair {
      std::size_t a;
      std::size_t b;
      int v100;
    };
    static constexpr std::array<Pair, 16> kPairs{{{0, 1, 1},
                                                  {0, 2, 1},
                                                  {0, 3, 2},
                                                  {0, 4, 2},
                                                  {1, 2, 2},
                                                  {1, 3, 1},
                                                  {1, 5, 2},
                                                  {2, 3, 2},
                                                  {2, 6, 1},
                                                  {3, 7, 1},
                                                  {4, 5, 1},
                                                  {4, 6, 1},
                                                  {4, 7, 2},
                                                  {5, 6, 2},
                                                  {5, 7, 1},
                                                  {6, 7, 2}}};
    const bool doubled = gpu_->model.find("P100") == std::string::npos;
    const int all = doubled ? 6 : 4;
    if (lanes() != all) {
      builder_.note(fmt::format("nvcube uses {} lanes of a GPU", all));
    }
    for (const Pair& pair : kPairs) {
      const int share = doubled ? pair.v100 : 1;
      nvlink(gpus_[pair.a], gpus_[pair.b], share,
             part.rate ? std::optional(*part.rate * share) : std::nullopt);
    }
  }

  const Parser& parser_;
  Builder builder_;
  std::optional<Part> gpu_;
  std::optional<Part> cpu_;
  std::optional<Part> nic_;
  std::vector<Part> switches_;
  std::vector<Part> fabrics_;
  int gen_ = 5;
  bool rails_ = false;
  bool network_ = false;
  std::vector<NodeIndex> cpus_;
  std::vector<NodeIndex> above_;  ///< what devices hang on
  std::vector<NodeIndex> gpus_;
};

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets{
      {"dgx1p", "8gpu:P100 nvcube 2cpu@10.3 4pcie 4nic@12.5 gen3", "DGX-1 with 8 P100"},
      {"dgx1v", "8gpu:V100 nvcube 2cpu@10.3 4pcie 4nic@12.5 gen3", "DGX-1 with 8 V100"},
      {"dgx2", "16gpu:V100 nvswitch 2cpu@10 4pcie 8pcie 8nic@12.5 gen3", "DGX-2, one crossbar"},
      {"dgx-a100", "8gpu:A100 nvswitch 2cpu@16 4pcie 8nic@25 gen4", "DGX A100"},
      {"dgx-h100", "8gpu:H100 nvswitch 2cpu@22 8pcie 8nic@50 gen5", "DGX H100, a NIC per GPU"},
  };
  return kPresets;
}

Topology synthetic(std::string_view text) {
  Parser parser(text);
  const Parsed parsed = parser.run();
  HostBuilder builder(parser, parsed.parts, text);
  Topology host = builder.run();
  if (parsed.hosts > 1 && !builder.has_nics()) parser.refuse(1, "several hosts need NICs");
  if (parsed.hosts == 1 && !(builder.wants_network() && builder.has_nics())) return host;
  Description description =
      replicate(host, parsed.hosts, builder.wants_rails() ? Fabric::kRails : Fabric::kOne)
          .description();
  description.name = "synthetic";
  description.title = std::string(text);
  return Topology(std::move(description));
}

}  // namespace ropewalk::topology
