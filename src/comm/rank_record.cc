#include "comm/rank_record.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bootstrap/agreed_error.h"
#include "bootstrap/memory_handover.h"
#include "core/error.h"
#include "core/log.h"
#include "core/process_memory.h"
#include "core/units.h"
#include "machine/found_rails.h"
#include "transport/registry.h"
#include "tune/forced_algorithms.h"
#include "tune/processors.h"

namespace ropewalk::comm {
namespace {

constexpr std::uint32_t kRecordVersion = 8;

// Sent as it lies: all ranks run the same build on the same architecture, which `version` and
// `size` check.
struct RankRecord {
  std::uint32_t version = kRecordVersion;
  std::uint32_t size = sizeof(RankRecord);
  std::array<char, 64> host{};
  std::array<char, 40> machine{};
  tune::Processors processors;
  std::int64_t numa = -1;  // as tune::NumaNodes::node_of()
  std::uint64_t process_token = 0;
  ProbeAddress probe;
  std::uint32_t slots = 0;
  std::uint32_t slot_bytes = 0;
  std::uint32_t channels = 0;
  std::uint8_t single_copy = 0;  // 0 off, 1 auto, 2 on
  std::uint8_t check_calls = 0;
  std::uint8_t adapt_chunks = 0;
  std::uint8_t adapt_copies = 0;
  std::uint8_t adapt_hybrid = 0;
  std::uint8_t topology_given = 0;
  std::uint8_t emulated = 0;
  std::uint8_t encrypts = 0;
  std::array<char, 12> planning{};  // the setting PLANNING
  std::uint64_t single_copy_bytes = 0;
  std::array<char, 8> protocol{};
  std::array<std::uint8_t, kNumCollectives> algorithms{};  // that are forced, see forced_numbers()
  std::array<char, 16> net{};                              // the setting NET
  std::array<char, 8> verify{};
  tune::MachineConstants constants;
};

// Over sockets a chunk costs two system calls; beyond this size they are little beside its copies.
// (Against 32 KiB, exchanges of 256 KiB and more then take 0.8 to 0.9 of the time.)
constexpr std::uint32_t kNetworkChunkBytes = 64 << 10;
// Of long messages chunks are longer: 64 KiB and a header make a full segment and the rest of one.
// (An all-reduce of 16 MiB then takes 0.95 of the time over 1 Gbit/s, which is the wire's, and 0.9
// over 10 Gbit/s and loopback.)
constexpr std::uint32_t kNetworkSlotBytes = 128 << 10;

// Plans have a channel for each of their trees. Links take addresses for all pairs of ranks.
constexpr int kPlannedChannels = 16;
constexpr int kMostPlannedRanks = 64;

// As for links between GPUs: the time of a chunk is long compared with the link's latency.
constexpr std::uint32_t kEmulatedSlotBytes = 512 << 10;

// Each channel takes address space for all pairs of a host's ranks.
constexpr int kMostRanksOfRails = 32;

struct SegmentName {
  std::array<char, 32> server{};  // empty for ranks that lead no host
};

struct Outcome {
  std::uint8_t single_copy_works = 0;
};

template <typename Value>
void require_equal(const Value& mine, const Value& theirs, std::string_view field, int rank,
                   int peer) {
  if (mine != theirs) {
    throw bootstrap::AgreedError(Errc::kInvalidUsage, "{} differs: rank {} has {}, rank {} has {}",
                                 field, rank, mine, peer, theirs);
  }
}

// By collective: 1 + the index among the algorithms of the one that is forced, 0 for none.
std::array<std::uint8_t, kNumCollectives> forced_numbers(const Config& config) {
  static_assert(sizeof(RankRecord::algorithms) == kNumCollectives);
  std::array<std::uint8_t, kNumCollectives> numbers{};
  for (const auto& [collective, forced] :
       tune::forced_algorithms(config.text(Setting::kAlgorithm))) {
    std::uint8_t number = 1;
    for (const std::string& algorithm : tune::algorithm_names()) {
      if (algorithm == forced.name) numbers[static_cast<std::size_t>(collective)] = number;
      ++number;
    }
  }
  return numbers;
}

std::string_view forced_name(std::uint8_t number) {
  const std::vector<std::string>& known = tune::algorithm_names();
  if (number == 0) return "auto";
  return number <= known.size() ? std::string_view(known[number - 1U])
                                : "an algorithm unknown to this rank";
}

// What ranks choose by, each for itself, must be equal for them to choose identically.
void require_equal_settings(const RankRecord& mine, const RankRecord& theirs, int rank, int peer) {
  const auto require = [&](const auto& own, const auto& other, std::string_view field) {
    require_equal(own, other, field, rank, peer);
  };
  require(mine.slots, theirs.slots, "setting SLOTS");
  require(mine.slot_bytes, theirs.slot_bytes, "setting SLOT_BYTES");
  require(mine.channels, theirs.channels, "setting CHANNELS");
  require(mine.check_calls, theirs.check_calls, "setting CHECK_CALLS");
  require(mine.adapt_chunks, theirs.adapt_chunks, "setting ADAPT_CHUNKS");
  require(mine.adapt_hybrid, theirs.adapt_hybrid, "setting ADAPT_HYBRID");
  require(mine.adapt_copies, theirs.adapt_copies, "setting ADAPT_COPIES");
  require(mine.single_copy_bytes, theirs.single_copy_bytes, "setting SINGLE_COPY_BYTES");
  require(std::string_view(mine.protocol.data()), std::string_view(theirs.protocol.data()),
          "setting PROTOCOL");
  require(std::string_view(mine.net.data()), std::string_view(theirs.net.data()), "setting NET");
  require(std::string_view(mine.verify.data()), std::string_view(theirs.verify.data()),
          "setting VERIFY");
  require(mine.encrypts, theirs.encrypts, "setting NET_ENCRYPT");
  require(std::string_view(mine.planning.data()), std::string_view(theirs.planning.data()),
          "setting PLANNING");
  // What machine it is, is compared when it was read.
  const auto emulated = [](const RankRecord& record) {
    return std::string_view(record.emulated != 0 ? "a machine" : "none");
  };
  require(emulated(mine), emulated(theirs), "setting EMULATE");
  // The field's name is made for a difference alone: 1,024 ranks compare nine million of them.
  for (std::size_t c = 0; c < mine.algorithms.size(); ++c) {
    if (mine.algorithms[c] == theirs.algorithms[c]) continue;
    require(forced_name(mine.algorithms[c]), forced_name(theirs.algorithms[c]),
            fmt::format("setting ALGORITHM of {}", name(static_cast<Collective>(c))));
  }
}

// 0: not given.
std::uint32_t given_slot_bytes(const Config& config) {
  const std::size_t given = config.bytes(Setting::kSlotBytes);
  if (given == 0) return 0;
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(
      given / executor::kLineBytes * executor::kLineBytes, 1024, std::size_t{16} << 20U));
}

}  // namespace

std::string host_identity(const Config& config, int rank) {
  if (config.text(Setting::kLinks) == "network" || !config.text(Setting::kEmulate).empty()) {
    return fmt::format("rank {}", rank);
  }
  if (const std::string& given = config.text(Setting::kHostId); !given.empty()) return given;
  std::array<char, 64> network{};
  const ssize_t length = readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  if (length < 0) network[0] = '\0';
  return tune::machine_identity() + network.data();
}

HostInfo exchange_records(bootstrap::Bootstrap& bootstrap, const Config& config, Runtime& runtime,
                          Deadline deadline) {
  const int rank = bootstrap.rank();
  const int size = bootstrap.size();
  const auto n = static_cast<std::size_t>(size);
  const auto self = static_cast<std::size_t>(rank);

  const ProcessProbe probe;  // must outlive the peers' attempts: until the last exchange
  std::vector<RankRecord> records(n);
  RankRecord& mine = records[self];
  const std::string host = host_identity(config, rank);
  std::strncpy(mine.host.data(), host.c_str(), mine.host.size() - 1);
  mine.process_token = runtime.token();
  mine.probe = probe.address();
  mine.slots = static_cast<std::uint32_t>(parse_integer(config.text(Setting::kSlots)));
  mine.slot_bytes = given_slot_bytes(config);
  mine.channels = static_cast<std::uint32_t>(config.integer(Setting::kChannels));
  const std::string machine = tune::machine_identity();
  std::strncpy(mine.machine.data(), machine.c_str(), mine.machine.size() - 1);
  mine.processors = tune::Processors::usable();
  mine.numa = runtime.numa_nodes().node_of(mine.processors);
  const std::string& single_copy = config.text(Setting::kSingleCopy);
  mine.single_copy = single_copy == "off" ? 0 : single_copy == "on" ? 2 : 1;
  mine.emulated = config.text(Setting::kEmulate).empty() ? 0 : 1;
  mine.topology_given = config.text(Setting::kTopology).empty() ? 0 : 1;
  mine.encrypts = config.flag(Setting::kNetEncrypt) ? 1 : 0;
  mine.check_calls = config.flag(Setting::kCheckCalls) ? 1 : 0;
  mine.adapt_chunks = config.flag(Setting::kAdaptChunks) ? 1 : 0;
  mine.adapt_copies = config.flag(Setting::kAdaptCopies) ? 1 : 0;
  mine.adapt_hybrid = config.flag(Setting::kAdaptHybrid) ? 1 : 0;
  mine.single_copy_bytes = config.bytes(Setting::kSingleCopyBytes);
  const std::string& protocol = config.text(Setting::kProtocol);
  std::strncpy(mine.protocol.data(), protocol.c_str(), mine.protocol.size() - 1);
  mine.algorithms = forced_numbers(config);
  config.text(Setting::kNet).copy(mine.net.data(), mine.net.size() - 1);
  config.text(Setting::kVerify).copy(mine.verify.data(), mine.verify.size() - 1);
  config.text(Setting::kPlanning).copy(mine.planning.data(), mine.planning.size() - 1);
  if (rank == 0) mine.constants = tune::machine_constants(config);
  bootstrap.all_gather(std::as_writable_bytes(std::span(records)), sizeof(RankRecord), deadline);

  HostInfo info;
  info.facts.num_ranks = size;
  info.facts.same_process = true;
  // By names that lie in the records: 1,024 ranks look a million of them up.
  std::unordered_map<std::string_view, int> host_numbers;  // by their first ranks
  std::vector<int> ranks_of_host;
  std::vector<int> local;
  std::unordered_map<std::string_view, std::vector<tune::Processors>> machines;
  bool single_copy_wanted = true;
  for (int r = 0; r < size; ++r) {
    const RankRecord& record = records[static_cast<std::size_t>(r)];
    require_equal(kRecordVersion, record.version, "version of Ropewalk", rank, r);
    require_equal(mine.size, record.size, "build of Ropewalk", rank, r);
    require_equal_settings(mine, record, rank, r);
    const std::string_view its_host(record.host.data());
    const int number =
        host_numbers.try_emplace(its_host, static_cast<int>(host_numbers.size())).first->second;
    ranks_of_host.resize(host_numbers.size());
    ++ranks_of_host[static_cast<std::size_t>(number)];
    if (its_host == mine.host.data()) local.push_back(r);
    info.seats.host_of_rank.push_back(number);
    info.seats.processors.push_back(record.processors);
    info.seats.numa_of_rank.push_back(static_cast<int>(record.numa));
    info.topology_given |= record.topology_given != 0;
    info.facts.same_process &= record.process_token == mine.process_token;
    // Hosts may be containers of one machine.
    machines[std::string_view(record.machine.data())].push_back(record.processors);
    single_copy_wanted &= record.single_copy != 0;
  }
  info.facts.num_hosts = static_cast<int>(ranks_of_host.size());
  info.facts.max_ranks_per_host = std::ranges::max(ranks_of_host);
  for (const auto& [name, processors] : machines) {
    info.facts.ranks_per_processor =
        std::max(info.facts.ranks_per_processor, tune::ranks_per_processor(processors));
  }
  info.shape.slots = mine.slots;
  if (mine.slot_bytes > 0) {
    info.shape.slot_bytes = mine.slot_bytes;
  } else if (!config.text(Setting::kEmulate).empty()) {
    info.shape.slot_bytes = kEmulatedSlotBytes;
  } else if (info.facts.num_hosts > 1) {
    // The setting NET is the same on all ranks.
    const auto wanted = static_cast<std::uint32_t>(transport::chosen_provider(config).piece_bytes);
    info.shape.slot_bytes = wanted != 0 ? wanted : kNetworkSlotBytes;
    if (wanted == 0) info.facts.chunk_bytes = kNetworkChunkBytes;
  } else {
    info.shape.slot_bytes = kSlotBytes;
  }
  if (info.shape.slot_bytes > kShortBytes) {
    info.shape.short_slots = kShortSlots;
    info.shape.short_bytes = kShortBytes;
    info.shape.short_stride = kShortStride;
  }
  info.facts.slot_bytes = info.shape.slot_bytes;
  info.facts.short_bytes = info.shape.short_bytes;
  info.constants = records[0].constants;
  // Two strands suffice for double trees; wide groups keep the segment's address range in bounds.
  info.channels = std::max(2, static_cast<int>(mine.channels));
  // By facts that are equal on all ranks; a TOPOLOGY that one rank lacks is reported later.
  const bool planned = info.topology_given || !config.text(Setting::kEmulate).empty();
  if (planned && size <= kMostPlannedRanks) {
    info.channels = std::max(info.channels, kPlannedChannels);
  }
  // One for each NIC of a host.
  if (info.facts.num_hosts > 1 && info.facts.max_ranks_per_host <= kMostRanksOfRails) {
    info.channels = std::max(info.channels, machine::kMostRails);
  }
  info.facts.max_channels = info.channels;
  if (info.facts.num_hosts > 1) info.facts.host_of_rank = info.seats.host_of_rank;

  // The first rank of a host makes the segment; the others fetch it.
  const int leader = local.front();
  const link::HostSegment::Layout layout{static_cast<int>(local.size()), info.channels + 1,
                                         info.shape};
  std::vector<SegmentName> names(n);
  std::unique_ptr<DescriptorServer> server;
  if (rank == leader) {
    server = std::make_unique<DescriptorServer>();
    std::copy(server->name().begin(), server->name().end(), names[self].server.begin());
    info.segment = runtime.segment(server->name(), [&] {
      return std::make_shared<link::HostSegment>(
          layout, SharedMemory::create(layout.bytes(),
                                       parse_shm_backing(config.text(Setting::kShmBacking))));
    });
  }
  bootstrap.all_gather(std::as_writable_bytes(std::span(names)), sizeof(SegmentName), deadline);
  // One rank of a process fetches it for all of that process.
  std::set<std::uint64_t> fetching;
  for (const int r : local) fetching.insert(records[static_cast<std::size_t>(r)].process_token);
  fetching.erase(records[static_cast<std::size_t>(leader)].process_token);
  if (rank == leader) {
    bootstrap::hand_over(*server, info.segment->fd(), static_cast<int>(fetching.size()), local,
                         bootstrap, deadline);
  } else {
    const SegmentName& name = names[static_cast<std::size_t>(leader)];
    const std::string server_name(name.server.begin(), name.server.end());
    info.segment = runtime.segment(server_name, [&] {
      return std::make_shared<link::HostSegment>(
          layout, SharedMemory::map_once(bootstrap::descriptor_of(leader, server_name, deadline),
                                         layout.bytes()));
    });
  }

  // Kernel-assisted single copy: tried with every local rank of another process.
  std::vector<Outcome> outcomes(n);
  outcomes[self].single_copy_works = 1;
  std::set<std::uint64_t> tried;
  for (const int r : local) {
    const RankRecord& record = records[static_cast<std::size_t>(r)];
    if (record.process_token == mine.process_token || !single_copy_wanted) continue;
    if (!tried.insert(record.process_token).second) continue;
    const std::string reason = try_single_copy(record.probe);
    if (reason.empty()) continue;
    outcomes[self].single_copy_works = 0;
    if (mine.single_copy == 2) {
      throw Error(Errc::kSystem, "SINGLE_COPY is on, and does not work with rank {}: {}", r,
                  reason);
    }
    log::info(log::kShm, "rank {} cannot copy from rank {} in one step: {}", rank, r, reason);
  }
  bootstrap.all_gather(std::as_writable_bytes(std::span(outcomes)), sizeof(Outcome), deadline);
  bool single_copy_works = single_copy_wanted;
  for (const Outcome& outcome : outcomes) single_copy_works &= outcome.single_copy_works != 0;
  info.facts.all_by_address =
      info.facts.num_hosts == 1 && (single_copy_works || info.facts.same_process);

  info.reach.resize(n);
  for (std::size_t k = 0; k < local.size(); ++k) {
    const auto r = static_cast<std::size_t>(local[k]);
    const bool same_process = records[r].process_token == mine.process_token;
    info.reach[r].local_rank = static_cast<int>(k);
    info.reach[r].process = same_process ? 0 : static_cast<int>(records[r].probe.pid);
    info.reach[r].by_address = same_process || single_copy_works;
  }
  return info;
}

}  // namespace ropewalk::comm
