#include "plan/nccl_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "topology/nccl_form.h"
#include "topology/xml.h"

namespace ropewalk::plan {
namespace {

constexpr int kMostChannels = 64;  // NCCL's own limit of a communicator
constexpr std::uint64_t kIndexMask = (std::uint64_t{1} << 56) - 1;
constexpr int kMostRank = 1 << 30;

class Reader {
 public:
  Reader(std::string_view text, std::string_view origin)
      : xml_(text, origin, /*decode_entities=*/false) {}

  NcclGraphs run() {
    const pugi::xml_node root = xml_.root();
    if (std::string_view(root.name()) != "graphs") {
      xml_.refuse(root, fmt::format("<{}> where <graphs> should be", root.name()));
    }
    if (xml_.integer(root, "version") != 1) xml_.refuse(root, "version is not 1");
    NcclGraphs graphs;
    for (const pugi::xml_node& child : root.children("graph")) graphs.push_back(graph(child));
    return graphs;
  }

 private:
  int number(const pugi::xml_node& element, const char* name, int least, int most) {
    const long value = xml_.integer(element, name);
    if (value < least || value > most) {
      xml_.refuse(element,
                  fmt::format("{}=\"{}\" is not within {} to {}", name, value, least, most));
    }
    return static_cast<int>(value);
  }

  double amount(const pugi::xml_node& element, const char* name) {
    const double value = xml_.number(element, name);
    if (!(value >= 0 && value <= 1e9)) {
      xml_.refuse(element, fmt::format("{}=\"{}\" is no amount", name, value));
    }
    return value;
  }

  std::string path_type(const pugi::xml_node& element, const char* name) {
    std::string type = xml_.required(element, name);
    if (std::find(std::begin(kNcclPathTypes), std::end(kNcclPathTypes), type) ==
        std::end(kNcclPathTypes)) {
      xml_.refuse(element, fmt::format("{} names no path type", name));
    }
    return type;
  }

  std::uint64_t dev(const pugi::xml_node& element) {
    const std::string text = xml_.required(element, "dev");
    std::string_view digits = text;
    if (digits.starts_with("0x") || digits.starts_with("0X")) digits.remove_prefix(2);
    std::uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) {
      xml_.refuse(element, "dev is no hexadecimal number");
    }
    if ((value & kIndexMask) > 0xffffffff) xml_.refuse(element, "dev is no device index");
    return value;
  }

  NcclChannel channel(const pugi::xml_node& element) {
    NcclChannel found;
    for (const pugi::xml_node& child : element.children()) {
      const std::string_view name = child.name();
      if (name == "net") found.nets.push_back(dev(child));
      if (name == "gpu") {
        NcclGpu gpu;
        gpu.dev = dev(child);
        if (child.attribute("rank")) gpu.rank = number(child, "rank", 0, kMostRank);
        const bool twice = std::any_of(found.gpus.begin(), found.gpus.end(),
                                       [&](const NcclGpu& other) { return other.dev == gpu.dev; });
        if (twice) xml_.refuse(child, "the GPU stands twice in its channel");
        found.gpus.push_back(gpu);
      }
    }
    if (found.gpus.empty()) xml_.refuse(element, "a channel without GPUs");
    if (found.nets.size() == 1) {
      xml_.refuse(element, "one net alone: NCCL would take device 0 for the other");
    }
    if (found.nets.size() > 2) xml_.refuse(element, "more than two nets");
    return found;
  }

  NcclGraph graph(const pugi::xml_node& element) {
    NcclGraph found;
    found.id = number(element, "id", 0, 15);
    found.pattern = number(element, "pattern", 1, 6);
    found.crossnic = number(element, "crossnic", 0, 2);
    found.nchannels = number(element, "nchannels", 0, kMostChannels);
    found.speedintra = amount(element, "speedintra");
    found.speedinter = amount(element, "speedinter");
    if (element.attribute("latencyinter")) found.latencyinter = amount(element, "latencyinter");
    found.typeintra = path_type(element, "typeintra");
    found.typeinter = path_type(element, "typeinter");
    found.samechannels = number(element, "samechannels", 0, 1) == 1;
    for (const pugi::xml_node& child : element.children("channel")) {
      found.channels.push_back(channel(child));
    }
    if (static_cast<int>(found.channels.size()) < found.nchannels) {
      xml_.refuse(element, fmt::format("nchannels is {}, and there are {} channels",
                                       found.nchannels, found.channels.size()));
    }
    return found;
  }

  topology::XmlFile xml_;
};

std::string amount_text(double value) { return fmt::format("{:.8g}", value); }

}  // namespace

NcclGraphs read_nccl_graph(std::string_view text, std::string_view origin) {
  topology::check_nccl_form(text, origin, topology::kNcclGraphLimits);
  return Reader(text, origin).run();
}

std::string write_nccl_graph(const NcclGraphs& graphs) {
  std::string text = "<graphs version=\"1\">\n";
  for (const NcclGraph& graph : graphs) {
    text += fmt::format(
        "  <graph id=\"{}\" pattern=\"{}\" crossnic=\"{}\" nchannels=\"{}\" speedintra=\"{}\" "
        "speedinter=\"{}\"",
        graph.id, graph.pattern, graph.crossnic, graph.nchannels, amount_text(graph.speedintra),
        amount_text(graph.speedinter));
    if (graph.latencyinter) {
      text += fmt::format(" latencyinter=\"{}\"", amount_text(*graph.latencyinter));
    }
    text += fmt::format(" typeintra=\"{}\" typeinter=\"{}\" samechannels=\"{}\">\n",
                        graph.typeintra, graph.typeinter, graph.samechannels ? 1 : 0);
    for (const NcclChannel& channel : graph.channels) {
      text += "    <channel>\n";
      const auto net = [&](std::uint64_t dev) {
        text += fmt::format("      <net dev=\"{:#x}\"/>\n", dev);
      };
      if (!channel.nets.empty()) net(channel.nets.front());
      for (const NcclGpu& gpu : channel.gpus) {
        text += fmt::format("      <gpu dev=\"{:#x}\"", gpu.dev);
        if (gpu.rank) text += fmt::format(" rank=\"{}\"", *gpu.rank);
        text += "/>\n";
      }
      if (channel.nets.size() > 1) net(channel.nets.back());
      text += "    </channel>\n";
    }
    text += "  </graph>\n";
  }
  text += "</graphs>\n";
  read_nccl_graph(text, "NCCL graph");
  return text;
}

}  // namespace ropewalk::plan
