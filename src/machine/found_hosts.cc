#include "machine/found_hosts.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/digest.h"
#include "core/error.h"
#include "core/log.h"
#include "topology/json.h"
#include "topology/merge.h"
#include "topology/named.h"

namespace ropewalk::machine {
namespace {

constexpr std::uint32_t kHostTag = 0x54000000;
constexpr std::size_t kNamedOrigins = 3;

std::string_view environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// As in NCCL, a file that cannot be used causes a warning and is ignored.
std::optional<ThisHost> from_nccl_file() {
  const std::string path(environment("NCCL_TOPO_FILE"));
  if (path.empty()) return std::nullopt;
  try {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      throw Error(Errc::kInvalidArgument, "{}: no such file", path);
    }
    const topology::Topology read = topology::named(path);
    // What merging would refuse later is refused now.
    (void)topology::merge(std::span(&read, 1), topology::Fabric::kOne);
    if (read.nodes_of(topology::NodeKind::kCpu).empty()) {
      throw Error(Errc::kInvalidArgument, "{}: it has no CPU", path);
    }
    return ThisHost{{topology::write_json(read), "NCCL_TOPO_FILE " + path}, true};
  } catch (const Error& error) {
    log::warn("NCCL_TOPO_FILE is ignored: {}", error.what());
    return std::nullopt;
  }
}

// For hosts where nothing can be discovered.
topology::Topology bare_host() {
  topology::Description bare;
  bare.name = "host";
  bare.title = "a host of which nothing is known";
  bare.nodes.push_back({.id = "cpu0", .kind = topology::NodeKind::kCpu});
  return topology::Topology(std::move(bare));
}

// "described" is a character in front, the origin ends with a zero.
std::string packed(const ThisHost& host) {
  return (host.described ? "1" : "0") + host.graph.origin + '\0' + host.graph.text;
}

ThisHost unpacked(std::string_view bytes) {
  const std::size_t end = bytes.find('\0');
  RW_ASSERT(!bytes.empty() && end != std::string_view::npos);
  return {{std::string(bytes.substr(end + 1)), std::string(bytes.substr(1, end - 1))},
          bytes.front() == '1'};
}

std::string joined(std::vector<std::string> origins) {
  std::sort(origins.begin(), origins.end());
  origins.erase(std::unique(origins.begin(), origins.end()), origins.end());
  const std::size_t more = origins.size() - std::min(origins.size(), kNamedOrigins);
  origins.resize(origins.size() - more);
  if (more > 0) origins.push_back(fmt::format("{} more", more));
  return fmt::format("{}", fmt::join(origins, ", "));
}

// Rank 0's part: `leaders` are the first ranks of the hosts, itself in front.
std::string collect(bootstrap::Bootstrap& bootstrap, const std::vector<int>& leaders, ThisHost mine,
                    Deadline deadline) {
  HostGraphs graphs;
  std::vector<std::string> origins;
  for (const int leader : leaders) {
    ThisHost host;
    if (leader == 0) {
      host = std::move(mine);
    } else {
      const std::vector<std::byte> message = bootstrap.recv(leader, kHostTag, deadline);
      host = unpacked({reinterpret_cast<const char*>(message.data()), message.size()});
    }
    graphs.described |= host.described;
    origins.push_back(std::move(host.graph.origin));
    graphs.add(std::move(host.graph.text));
  }
  graphs.origin = joined(std::move(origins));
  std::string written = write(graphs);
  if (written.size() <= bootstrap::Bootstrap::kMaxMessageBytes) return written;
  log::warn("the topologies of {} hosts take {} bytes: they are ignored", leaders.size(),
            written.size());
  HostGraphs bare{.origin = "left aside"};
  for (std::size_t h = 0; h < leaders.size(); ++h) bare.add(topology::write_json(bare_host()));
  return write(bare);
}

}  // namespace

std::filesystem::path topology_cache(const Config& config) {
  const std::string& given = config.text(Setting::kTopologyCache);
  if (given == "off") return {};
  if (!given.empty()) return given;
  if (const std::string_view cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return std::filesystem::path(cache) / "ropewalk";
  }
  const std::string_view home = environment("HOME");
  // Without a home there is no folder that nobody else could have made.
  if (home.empty()) return {};
  return std::filesystem::path(home) / ".cache" / "ropewalk";
}

ThisHost this_host(const Config& config, topology::KeptHost& kept) {
  if (std::optional<ThisHost> described = from_nccl_file()) return std::move(*described);
  try {
    return {kept.graph(topology_cache(config)), false};
  } catch (const std::exception& error) {
    log::warn("this host's topology cannot be discovered: {}", error.what());
    return {{topology::write_json(bare_host()), "not found"}, false};
  }
}

FoundHosts::FoundHosts(bootstrap::Bootstrap& bootstrap, const Config& config,
                       topology::KeptHost& kept, Seats seats,
                       std::shared_ptr<link::HostSegment> segment, Deadline deadline)
    : config_(config), kept_(kept), seats_(std::move(seats)), on_host_(std::move(segment)) {
  const int hosts = 1 + *std::ranges::max_element(seats_.host_of_rank);
  if (hosts > 1) tell_all(bootstrap, hosts, deadline);
}

void FoundHosts::tell_all(bootstrap::Bootstrap& bootstrap, int hosts, Deadline deadline) {
  std::vector<int> leaders;  // by host
  for (int host = 0; host < hosts; ++host) {
    leaders.push_back(static_cast<int>(std::ranges::find(seats_.host_of_rank, host) -
                                       seats_.host_of_rank.begin()));
  }
  struct Size {
    std::uint64_t bytes = 0;
    std::uint64_t digest = 0;
  } size;
  const int rank = bootstrap.rank();
  const auto host = static_cast<std::size_t>(seats_.host_of_rank[static_cast<std::size_t>(rank)]);
  if (rank == leaders[host]) {
    ThisHost mine = this_host(config_, kept_);
    if (rank == 0) {
      told_ = collect(bootstrap, leaders, std::move(mine), deadline);
      size = {told_.size(), digest(told_)};
    } else {
      const std::string message = packed(mine);
      bootstrap.send(0, kHostTag, std::as_bytes(std::span(message)));
    }
  }
  // Two messages, one behind the other: nobody waits for the second.
  bootstrap.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0, deadline);
  told_.resize(size.bytes);
  bootstrap.broadcast(std::as_writable_bytes(std::span(told_)), 0, deadline);
  if (digest(told_) != size.digest) {
    throw Error(Errc::kInternal, "rank {} has other topologies of the hosts than rank 0 sent",
                rank);
  }
}

Machine FoundHosts::machine(const std::function<void()>& waiting) {
  const auto find = [&] {
    ThisHost host = this_host(config_, kept_);
    HostGraphs alone{.origin = std::move(host.graph.origin), .described = host.described};
    alone.add(std::move(host.graph.text));
    return write(alone);
  };
  HostGraphs graphs = read_host_graphs(told_.empty() ? on_host_.get(find, waiting) : told_);
  std::vector<topology::Topology> read;
  for (const std::string& text : graphs.texts) {
    read.push_back(topology::read_json(text, "a host's topology"));
  }
  std::vector<topology::Topology> hosts;
  for (const std::uint32_t text : graphs.text_of_host) hosts.push_back(read[text]);
  topology::Topology whole = topology::merge(hosts, topology::Fabric::kOne);
  std::vector<topology::NodeIndex> placed = place_by_cores(whole, seats_);
  std::vector<int> cores;
  for (const tune::Processors& usable : seats_.processors) cores.push_back(usable.first());
  return {.topology = std::move(whole),
          .node_of_rank = std::move(placed),
          .planned = nullptr,
          .origin = std::move(graphs.origin),
          .described = graphs.described,
          .core_of_rank = std::move(cores)};
}

}  // namespace ropewalk::machine
