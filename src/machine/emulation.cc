#include "machine/emulation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "bootstrap/memory_handover.h"
#include "core/descriptor_server.h"
#include "core/error.h"
#include "core/log.h"
#include "core/units.h"
#include "schedule/traffic.h"
#include "tune/processors.h"

namespace ropewalk::machine {
namespace {

using transport::emulated::LinkClock;
using transport::emulated::RankClock;

// The rate at which a core moves data through slots and shared memory with some of its time left:
// copies at either end, the transport's, and sums.
constexpr double kBytesPerProcessor = 0.3e9;

// Of each rank, for its channels; of more channels several share one.
constexpr std::size_t kRankClocks = 64;

struct Record {
  std::array<char, 40> host{};
  std::uint64_t machine = 0;  // digest of its JSON
  std::int64_t slowdown = 0;  // the setting
  double chosen = 0;          // rank 0's
  std::array<char, 32> server{};
};

std::size_t bytes_of(const Machine& machine) {
  return machine.planned->links().size() * sizeof(LinkClock) +
         machine.planned->gpus().size() * kRankClocks * sizeof(RankClock);
}

void require_alike(std::span<const Record> records) {
  const Record& first = records.front();
  for (std::size_t r = 1; r < records.size(); ++r) {
    const Record& other = records[r];
    const auto refuse = [&](std::string_view what) {
      throw Error(Errc::kInvalidUsage, "{}: rank 0 and rank {} differ", what, r);
    };
    if (other.machine != first.machine) refuse("settings EMULATE and EMULATE_GPUS");
    if (other.slowdown != first.slowdown) refuse("setting EMULATE_SLOWDOWN");
    if (other.host != first.host) {
      throw Error(Errc::kInvalidUsage,
                  "EMULATE: rank {} is on another host than rank 0; emulated links are memory that "
                  "all ranks share",
                  r);
    }
  }
}

}  // namespace

double slowdown_of(const topology::Topology& machine, int processors) {
  double sum = 0;  // GB/s
  for (const topology::NodeIndex gpu : machine.gpus()) {
    for (const topology::LinkIndex out : machine.links_from(gpu)) {
      sum += machine.link(out).capacity;
    }
  }
  const double wanted = std::max(1.0, sum * 1e9 / (kBytesPerProcessor * processors));
  const double digit = std::pow(10, std::floor(std::log10(wanted)) - 1);
  return std::max(1.0, std::ceil(wanted / digit) * digit);
}

std::vector<int> emulated_gpus(const Config& config, const topology::Topology& machine, int size) {
  std::string_view text = config.text(Setting::kEmulateGpus);
  const int count = static_cast<int>(machine.gpus().size());
  std::vector<int> gpus;
  if (text.empty()) {
    if (count < size) {
      throw Error(Errc::kInvalidArgument, "EMULATE: {} has {} GPUs, the communicator {} ranks",
                  config.text(Setting::kEmulate), count, size);
    }
    gpus.resize(static_cast<std::size_t>(size));
    std::iota(gpus.begin(), gpus.end(), 0);
    return gpus;
  }
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::int64_t gpu = parse_integer(text.substr(0, comma));
    if (gpu < 0 || gpu >= count) {
      throw Error(Errc::kInvalidArgument, "EMULATE_GPUS: {} is outside 0 to {}", gpu, count - 1);
    }
    gpus.push_back(static_cast<int>(gpu));
    if (comma == text.size()) break;
    text.remove_prefix(comma + 1);
  }
  if (std::set<int>(gpus.begin(), gpus.end()).size() != gpus.size()) {
    throw Error(Errc::kInvalidArgument, "EMULATE_GPUS: {}: a GPU twice",
                config.text(Setting::kEmulateGpus));
  }
  if (static_cast<int>(gpus.size()) < size) {
    throw Error(Errc::kInvalidArgument, "EMULATE_GPUS: {} GPUs for {} ranks", gpus.size(), size);
  }
  // A communicator of fewer ranks, as split() makes one, has the first of them.
  gpus.resize(static_cast<std::size_t>(size));
  return gpus;
}

std::unique_ptr<Emulation> Emulation::join(bootstrap::Bootstrap& bootstrap, const Config& config,
                                           const EmulatedMachine& emulated, Deadline deadline) {
  const std::string& name = config.text(Setting::kEmulate);
  std::shared_ptr<const Machine> machine = emulated.machine;
  const int size = bootstrap.size();
  const int rank = bootstrap.rank();
  const auto self = static_cast<std::size_t>(rank);
  std::vector<Record> records(static_cast<std::size_t>(size));
  Record& mine = records[self];
  const std::string host = tune::machine_identity();
  host.copy(mine.host.data(), mine.host.size() - 1);
  mine.machine = emulated.digest;
  mine.slowdown = config.integer(Setting::kEmulateSlowdown);
  std::unique_ptr<DescriptorServer> server;
  if (rank == 0) {
    const auto processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    mine.chosen = mine.slowdown > 0 ? static_cast<double>(mine.slowdown)
                                    : slowdown_of(*machine->planned, processors);
    server = std::make_unique<DescriptorServer>();
    server->name().copy(mine.server.data(), mine.server.size());
  }
  bootstrap.all_gather(std::as_writable_bytes(std::span(records)), sizeof(Record), deadline);
  require_alike(records);

  const std::size_t bytes = bytes_of(*machine);
  const double slowdown = records.front().chosen;
  std::vector<int> ranks(records.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  // A rank that had it, and nothing else to do, would else leave while rank 0 serves the others,
  // and be missed.
  const auto all_have_it = [&] { bootstrap.barrier(deadline); };
  if (rank != 0) {
    const auto& from = records.front().server;
    SharedMemory memory = SharedMemory::map_once(
        bootstrap::descriptor_of(0, std::string_view(from.data(), from.size()), deadline), bytes);
    all_have_it();
    return std::unique_ptr<Emulation>(
        new Emulation(std::move(machine), rank, slowdown, std::move(memory)));
  }
  SharedMemory memory =
      SharedMemory::create(bytes, parse_shm_backing(config.text(Setting::kShmBacking)));
  memory.reserve(0, bytes);
  bootstrap::hand_over(*server, memory.fd(), size - 1, ranks, bootstrap, deadline);
  all_have_it();
  log::info(log::kInit, "emulating {}, {} GPUs: links are slowed {:g} times", name, size, slowdown);
  return std::unique_ptr<Emulation>(
      new Emulation(std::move(machine), rank, slowdown, std::move(memory)));
}

Emulation::Emulation(std::shared_ptr<const Machine> machine, int rank, double slowdown,
                     SharedMemory memory)
    : machine_(std::move(machine)), rank_(rank), slowdown_(slowdown), memory_(std::move(memory)) {
  begin();
}

LinkClock* Emulation::link(std::size_t index) const noexcept {
  return reinterpret_cast<LinkClock*>(memory_.data()) + index;
}

RankClock* Emulation::rank(int rank, int channel) const noexcept {
  return reinterpret_cast<RankClock*>(memory_.data() +
                                      machine_->planned->links().size() * sizeof(LinkClock)) +
         static_cast<std::size_t>(rank) * kRankClocks +
         static_cast<std::size_t>(channel) % kRankClocks;
}

transport::emulated::Path Emulation::path_to(int channel, int peer,
                                             const link::Route& route) const {
  const topology::Topology& machine = *machine_->planned;
  const std::vector<int> links =
      route.empty() ? schedule::default_route(machine, rank_, peer) : route;
  transport::emulated::Path path;
  path.source = rank(rank_, channel);
  path.destination = rank(peer, channel);
  double latency_us = 0;
  for (const int index : links) {
    const topology::Link& physical = machine.link(static_cast<std::size_t>(index));
    latency_us += topology::latency_us(physical);
    // 1 GB/s is a byte each nanosecond.
    path.hops.push_back({link(static_cast<std::size_t>(index)), slowdown_ / physical.capacity});
  }
  path.latency = static_cast<transport::emulated::Instant>(latency_us * 1e3 * slowdown_);
  return path;
}

link::Pacer Emulation::pacer() {
  return [this](std::unique_ptr<transport::SendConnection> inner, int channel, int peer,
                const link::Route& route) {
    return transport::emulated::pace(std::move(inner), path_to(channel, peer, route), beginning_);
  };
}

std::string describe(const Emulation& emulation) {
  const topology::Topology& machine = *emulation.machine().planned;
  nlohmann::json gpus = nlohmann::json::array();
  for (const topology::NodeIndex gpu : machine.gpus()) gpus.push_back(machine.node(gpu).id);
  return nlohmann::json{
      {"machine", machine.name()}, {"gpus", gpus}, {"slowdown", emulation.slowdown()}}
      .dump();
}

}  // namespace ropewalk::machine
