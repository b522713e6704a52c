#include "comm/cuda/cuda_group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "comm/call_report.h"
#include "comm/device_stop.h"
#include "core/cpu_list.h"
#include "core/log.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/gpu_clock.h"
#include "executor/cuda/kernel.h"
#include "executor/cuda/kernel_table.h"
#include "link/cuda/ipc_sharing.h"
#include "machine/nic_places.h"
#include "transport/registry.h"
#include "transport/window/device/ipc_memory.h"
#include "tune/hybrid_links.h"
#include "tune/processors.h"

namespace ropewalk::comm {
namespace {

using executor::kNumProtocols;
using executor::Message;
using executor::MessageArgs;
using executor::Protocol;

// Whose messages, to and from each, one launch takes.
constexpr int kPeersAtOnce = executor::kMaxMessages / 2;
constexpr std::uint32_t kFarewellTag = 0x44000000;
constexpr std::chrono::seconds kFarewellPatience{2};
// The times of as many records' blocks stay in pinned memory, 2 MiB where launches have 64 blocks:
// a record need not copy them before it is overwritten itself.
constexpr std::size_t kTimedRecords = 1024;
// A launch of messages has up to one for each multiprocessor.
constexpr std::size_t kLeastTimed = 1024;
constexpr std::size_t kTimesBytes = 2 * sizeof(std::uint64_t);

int capability_of(int device) {
  int capability = 0;
  executor::check_cuda(
      cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device),
      "cudaDeviceGetAttribute");
  return capability;
}

cudaLaunchAttribute cluster_attribute(unsigned blocks) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {blocks, 1, 1};
  return attribute;
}

// The largest power of two up to `wanted` in clusters of which the current GPU holds as many blocks
// as the longest launch has; at least 1.
int clusters_of(int device, int wanted) {
  if (wanted < 2 || capability_of(device) < 9) return 1;
  for (auto size = std::bit_floor(static_cast<unsigned>(wanted)); size > 1; size /= 2) {
    cudaLaunchAttribute attribute = cluster_attribute(size);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(executor::kMaxBlocks / size * size);
    config.blockDim = dim3(executor::launch_threads(Protocol::kSimple, executor::kMaxThreads));
    config.attrs = &attribute;
    config.numAttrs = 1;
    int held = 0;
    const cudaError_t result =
        cudaOccupancyMaxActiveClusters(&held, executor::cuda_message_kernels()[1], &config);
    if (result == cudaSuccess && static_cast<unsigned>(held) * size >= executor::kMaxBlocks) {
      return static_cast<int>(size);
    }
    (void)cudaGetLastError();
  }
  return 1;
}

// What every rank has room for and allows.
struct Room {
  int multiprocessors = 0;
  BlockBounds bounds;
};
// Collective.
Room narrowest(bootstrap::Bootstrap& bootstrap, int device, const BlockBounds& bounds,
               Deadline deadline) {
  std::vector<Room> all(static_cast<std::size_t>(bootstrap.size()));
  Room& own = all[static_cast<std::size_t>(bootstrap.rank())];
  own.bounds = bounds;
  own.bounds.cluster = clusters_of(device, bounds.cluster);
  executor::check_cuda(
      cudaDeviceGetAttribute(&own.multiprocessors, cudaDevAttrMultiProcessorCount, device),
      "cudaDeviceGetAttribute");
  bootstrap.all_gather(std::as_writable_bytes(std::span(all)), sizeof own, deadline);
  Room result = own;
  for (const Room& room : all) {
    result.multiprocessors = std::min(result.multiprocessors, room.multiprocessors);
    result.bounds.cluster = std::min(result.bounds.cluster, room.bounds.cluster);
    result.bounds.least = std::max(result.bounds.least, room.bounds.least);
    result.bounds.copy_engines = std::min(result.bounds.copy_engines, room.bounds.copy_engines);
    if (room.bounds.most == 0) continue;
    result.bounds.most =
        result.bounds.most == 0 ? room.bounds.most : std::min(result.bounds.most, room.bounds.most);
  }
  return result;
}

// Where the threads run that move data between hosts: near the GPU, and of these near the NICs that
// its links take.
std::vector<int> progress_cpus(const Config& config, int device, std::span<const int> nics,
                               const transport::Transport& transport) {
  const std::string& text = config.text(Setting::kProgressCpus);
  if (text == "none") return {};
  if (text != "auto") {
    try {
      return parse_cpu_list(text);
    } catch (const Error& error) {
      throw Error(error.code(), "setting ROPEWALK_PROGRESS_CPUS: {}", error.what());
    }
  }
  std::vector<std::vector<int>> others = {usable_cpus()};
  for (const int nic : nics) {
    if (nic >= transport.num_devices()) continue;
    const std::filesystem::path path = transport.properties(nic).pci_path;
    if (!path.empty()) others.push_back(cpus_near(path.filename().string()));
  }
  return cpus_also_in(cpus_near(device_bus_id(device)), others);
}

// As many as share out a core's copies, and leave most cores to the program and to other ranks.
constexpr int kMostProgressThreads = 4;
constexpr int kCpusPerProgressThread = 4;

// Between hosts ll is for short data: up to some KiB it takes half to three quarters of the time of
// simple (benchmarks/results/hosts-2xh100.txt), and has a thread of its own.
bool wants_network_ll(const Config& config) {
  const std::string& protocol = config.text(Setting::kProtocol);
  return protocol == "auto" || protocol == executor::name(Protocol::kLl);
}

link::DeviceNetwork::Options network_options(const Config& config, Runtime& runtime, int device,
                                             std::vector<int> nics, executor::Traffic* traffic) {
  link::DeviceNetwork::Options options;
  options.gpu_slots = link::GpuSlots::options_of(config);
  options.gpu_slots.gpu = [&runtime, device]() -> transport::window::Gpu& {
    return runtime.gpus().at(device);
  };
  options.nics = nics;
  options.deadline = deadline_of(config);
  options.cpus = [config, device, nics = std::move(nics)](const transport::Transport& transport) {
    return progress_cpus(config, device, nics, transport);
  };
  options.seals = config.flag(Setting::kNetEncrypt);
  options.traffic = traffic;
  options.has_ll = wants_network_ll(config);
  options.threads = static_cast<int>(config.integer(Setting::kProgressThreads));
  if (options.threads == 0) {
    const int cpus = tune::Processors::usable().count() / std::max(1, device_count());
    options.threads = std::clamp(cpus / kCpusPerProgressThread, 1, kMostProgressThreads);
  }
  // The progress threads copy in parallel; a transport's own copying threads would wake too late
  // for pieces of a slot's size.
  Config of_transport = options.gpu_slots.use == link::GpuSlots::Use::kOff
                            ? transport::for_host_memory(config)
                            : config;
  if (config.integer(Setting::kCopyThreads) == 0) {
    of_transport.set("COPY_THREADS", "1", "links of GPUs");
  }
  options.make_transport = [of_transport] {
    return transport::make_transport(of_transport.text(Setting::kNet), of_transport);
  };
  return options;
}

// With more, each would have little of the windows' memory.
constexpr int kMostMappedRanks = 16;

// Slots of windows between hosts, and of all links where no two GPUs have access to each other.
tune::DeviceLimits over_windows(tune::DeviceLimits limits, const link::DeviceMappedWindows& mapped,
                                const link::PeerAccess& access) {
  for (int p = 0; p < kNumProtocols; ++p) {
    const std::size_t bytes = mapped.slot_bytes(static_cast<Protocol>(p));
    const auto i = static_cast<std::size_t>(p);
    limits.host_path_slot_bytes[i] = std::min(limits.host_path_slot_bytes[i], bytes);
    if (!access.any()) limits.slot_bytes[i] = limits.host_path_slot_bytes[i];
  }
  return limits;
}

// Links to other hosts have the protocol simple, `with_ll` ll too, and fewer channels.
tune::DeviceLimits over_network(tune::DeviceLimits limits, const executor::FifoShape& shape,
                                bool with_ll) {
  for (auto* slot_bytes : {&limits.slot_bytes, &limits.host_path_slot_bytes}) {
    std::size_t& simple = (*slot_bytes)[static_cast<std::size_t>(Protocol::kSimple)];
    simple = std::min<std::size_t>(simple, shape.slot_bytes);
    if (!with_ll) (*slot_bytes)[static_cast<std::size_t>(Protocol::kLl)] = 0;
    (*slot_bytes)[static_cast<std::size_t>(Protocol::kLl128)] = 0;
  }
  limits.channels = std::min(limits.channels, link::DeviceNetwork::kChannels);
  limits.least_channels = std::min(limits.least_channels, limits.channels);
  limits.message_channels = std::min(limits.message_channels, link::DeviceNetwork::kChannels);
  limits.network = true;
  return limits;
}

}  // namespace

CudaGroup::Direct CudaGroup::direct_buffers(const Config& config) {
  const std::string& text = config.text(Setting::kDirectBuffers);
  if (text == "off") return Direct::kOff;
  return text == "on" ? Direct::kOn : Direct::kAuto;
}

CudaGroup::CudaGroup(bootstrap::Bootstrap& bootstrap, const Config& config, Runtime& runtime,
                     const tune::GroupFacts& facts, const link::Rails& rails,
                     executor::Traffic* traffic, int device, BlockBounds bounds)
    : device_(device),
      gpu_(runtime.gpus().at(device)),
      rank_(bootstrap.rank()),
      size_(bootstrap.size()),
      direct_(direct_buffers(config)),
      check_pointers_(config.flag(Setting::kCheckPointers)),
      check_calls_(config.flag(Setting::kCheckCalls)),
      facts_(facts),
      timeout_ns_(static_cast<std::uint64_t>(config.duration(Setting::kTimeout).count())),
      schedules_(runtime.schedules()) {
  const executor::CurrentDevice current(device_);
  peers_ = std::make_unique<link::DevicePeers>(bootstrap, config, runtime.token(), gpu_,
                                               facts.host_of_rank);
  // On a shared GPU the blocks of a launch that begins early might keep out those that another
  // rank's launch waits for.
  can_overlap_ = capability_of(device_) >= 9 && config.flag(Setting::kOverlapLaunches) &&
                 peers_->most_on_one_gpu() == 1;
  control_memory_ = std::make_unique<executor::PinnedBuffer>(sizeof(executor::Control));
  control_ = new (control_memory_->data()) executor::Control;
  order_ = std::make_unique<executor::StreamOrder>();
  blocks_ = std::make_unique<link::DeviceBlocks>(*order_);

  const link::DevicePeers::Layouts layouts = link::DeviceLinks::layouts(config, *peers_);
  {
    const executor::Stream stream;
    peers_->open_windows(bootstrap, layouts, stream.get(), deadline_of(config));
    open_mapped_windows(bootstrap, config, layouts.mapped, stream.get());
  }
  if (!peers_->access().any() && !peers_->access().missing().empty()) direct_ = Direct::kOff;
  if (peers_->access().any()) {
    facts_.host_path_pairs = peers_->access().missing();
    if (mapped_ != nullptr) {
      std::ranges::copy(mapped_->windows().pairs(), std::back_inserter(facts_.host_path_pairs));
      std::ranges::sort(facts_.host_path_pairs);
    }
  }
  facts_.ring_order = tune::ring_avoiding(facts_.host_path_pairs, size_, facts.host_of_rank);
  const tune::GpuPlacement gpus = {size_, facts.num_hosts, peers_->most_on_one_gpu(),
                                   peers_->access().any() && peers_->access().missing().empty()};
  if (tune::wants_hybrid_links(config.text(Setting::kHybrid), gpus)) {
    peers_->open_hybrid_windows(bootstrap, layouts, deadline_of(config));
  }
  std::vector<bool> elsewhere;
  std::vector<bool> beyond;
  for (int r = 0; r < size_; ++r) {
    elsewhere.push_back(peers_->reaches(r) && !peers_->same_process(r));
    beyond.push_back(!peers_->reaches(r));
  }
  buffers_ = std::make_unique<link::RegisteredBuffers>(
      bootstrap, std::make_unique<link::IpcSharing>(gpu_), std::move(elsewhere),
      direct_ != Direct::kOff, std::move(beyond));
  if (facts.num_hosts > 1 && (mapped_ == nullptr || !mapped_->windows().complete())) {
    network_ = std::make_unique<link::DeviceNetwork>(
        bootstrap, rails,
        network_options(config, runtime, device_,
                        machine::nics_in_use(rails, rank_, facts.host_of_rank), traffic),
        [this](const Error&) { abort(); });
  }
  links_ = std::make_unique<link::DeviceLinks>(*peers_, layouts, mapped_.get(), network_.get(),
                                               control_, *blocks_);
  // Reading a peer's memory while it reads this one's is slower than both writing; in one direction
  // only, it saves a copy.
  LaunchMaker::Options options;
  options.rank = rank_;
  options.num_ranks = size_;
  options.check_tags = check_calls_;
  options.direct_rooted = direct_ != Direct::kOff;
  options.direct_always = direct_ == Direct::kOn;
  maker_ = std::make_unique<LaunchMaker>(*links_, *blocks_, options);
  // Now, since taking pinned memory and loading a kernel later may wait for a kernel that waits for
  // this rank.
  // A profiler plugin is told of kernels, for which these times are needed.
  const bool timed_here =
      config.flag(Setting::kTraceGpu) || !config.text(Setting::kProfilerPlugin).empty();
  const std::size_t records = timed_here ? std::min(records_kept(config), kTimedRecords) : 0;
  if (records != 0) {
    const int channels =
        network_ != nullptr ? link::DeviceNetwork::kChannels : link::DeviceLinks::kChannels;
    const std::size_t timed =
        std::bit_ceil(std::max(2 * records * static_cast<std::size_t>(channels), kLeastTimed));
    times_memory_ = std::make_unique<executor::PinnedBuffer>(timed * kTimesBytes);
    std::memset(times_memory_->data(), 0, timed * kTimesBytes);
    times_ = std::make_unique<trace::DeviceTimes>(
        std::span(static_cast<std::uint64_t*>(times_memory_->data()), 2 * timed));
    clock_ = std::make_unique<executor::GpuClock>();
    read_clock();
  }
  counters_.resize(static_cast<std::size_t>(size_));
  bootstrap.barrier(deadline_of(config));

  // Blocks wait for their peers' ones: all of a launch must be on the GPU at once, one on each
  // multiprocessor, on the smallest GPU of all, beside those of the ranks that share it, and the
  // program's own kernels. A launch of messages has up to two for each peer.
  //
  // On a shared GPU the blocks that wait for each other may not find whole clusters. Two GPUs
  // gained nothing by clusters up to 64 MiB.
  if (peers_->most_on_one_gpu() > 1 || peers_->most_on_a_host() <= 2) bounds.cluster = 1;
  const Room room = narrowest(bootstrap, device_, bounds, deadline_of(config));
  int blocks = room.multiprocessors;
  if (const int sharing = peers_->most_on_one_gpu(); sharing > 1) {
    blocks = std::max(1, blocks * 3 / 4 / sharing);
  }
  limits_.cluster = room.bounds.cluster;
  if (room.bounds.most > 0) blocks = std::min(blocks, room.bounds.most);
  limits_.channels = std::min(link::DeviceLinks::kChannels, blocks);
  limits_.least_channels = std::min(limits_.channels, room.bounds.least);
  limits_.lag_slots = links_->lag_slots();
  const int fitting = std::clamp(blocks / (2 * std::max(1, size_ - 1)), 1, limits_.channels);
  limits_.message_channels = tune::whole_clusters(fitting, fitting, limits_.cluster);
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    limits_.slot_bytes[static_cast<std::size_t>(protocol)] = links_->slot_bytes(protocol);
    limits_.host_path_slot_bytes[static_cast<std::size_t>(protocol)] =
        links_->host_path_slot_bytes(protocol);
  }
  if (mapped_ != nullptr) limits_ = over_windows(limits_, *mapped_, peers_->access());
  if (peers_->has_hybrid_windows()) {
    limits_.hybrid_slot_bytes = links_->hybrid_slot_bytes();
    limits_.hybrid_channels = std::min(link::DeviceLinks::kHybridChannels, limits_.channels / 4);
  }
  if (network_ != nullptr) {
    limits_ = over_network(limits_, network_->shape(), wants_network_ll(config));
  }
  // Now, since taking device memory later may wait for a kernel that waits for this rank.
  for (int r = 0; r < size_; ++r) {
    for (int p = 0; p < kNumProtocols && r != rank_ && !links_->over_network(r); ++p) {
      for (const bool sends : {true, false}) {
        (void)links_->message_ends(static_cast<Protocol>(p), r, sends, limits_.message_channels);
      }
    }
  }
  std::unique_ptr<CopyEngines> copy_engines;
  if (size_ > 1 && room.bounds.copy_engines != CopyEngineUse::kOff) {
    if (reaches_all()) {
      copy_engines = std::make_unique<CopyEngines>(
          *links_, *blocks_, rank_, size_, room.bounds.copy_engines, check_calls_,
          make_shared_handshake(bootstrap, config, runtime, *peers_, *control_, device_,
                                times_ != nullptr));
    } else if (room.bounds.copy_engines == CopyEngineUse::kOn) {
      log::info(log::kInit,
                "rank {}: kernels do everything in spite of COPY_ENGINES=on: not all GPUs are of "
                "one host and read each other's buffers (settings PEER_ACCESS, DIRECT_BUFFERS)",
                rank_);
    }
  }
  constants_ = constants(bootstrap, config);
  use_hybrid(config);
  copy_engines_ = std::move(copy_engines);  // what was measured is of kernels
  // Only now: measuring is not counted.
  for (int r = 0; r < size_ && traffic != nullptr; ++r) {
    executor::Traffic::Counter*& counter = counters_[static_cast<std::size_t>(r)];
    if (mapped_ != nullptr && mapped_->between(r)) {
      counter = &traffic->to(r, "windows over " + mapped_->windows().name());
    }
    // Over the network the links count for themselves.
    if (r == rank_ || !peers_->on_this_host(r)) continue;
    counter = &traffic->to(r, peers_->reaches(r) ? "GPU memory" : "pinned memory");
  }
  pricing_ = std::make_unique<tune::DevicePricing>(config, limits_, constants_);
  if (mapped_ != nullptr) {
    log::info(log::kInit,
              "rank {}: kernels write the windows of {} pairs of ranks of different hosts over {}, "
              "{} MiB of pinned memory",
              rank_, mapped_->windows().pairs().size(), mapped_->windows().name(),
              mapped_->bytes() >> 20);
    mapped_->windows().watch([this] { abort(); });
  }
  log::info(log::kInit, "rank {} of {} works on GPU {}: {} MiB of device memory{}", rank_, size_,
            device_, memory_bytes() >> 20,
            network_ == nullptr
                ? ""
                : fmt::format(", {} MiB of pinned memory for links over {}{}",
                              network_->memory_bytes() >> 20, network_->name(),
                              network_->slots_on_gpu() ? ", slots on the GPU" : ""));
}

void CudaGroup::open_mapped_windows(bootstrap::Bootstrap& bootstrap, const Config& config,
                                    const link::WindowLayout& layout, cudaStream_t stream) {
  // LINKS=network asks for what hosts have that share nothing, and so do emulated machines.
  if (facts_.num_hosts < 2 || size_ > kMostMappedRanks ||
      config.text(Setting::kLinks) == "network" || !config.text(Setting::kEmulate).empty()) {
    return;
  }
  link::MappedWindows::Drivers drivers = transport::make_window_drivers(config);
  if (drivers.empty()) return;
  mapped_ = std::make_unique<link::DeviceMappedWindows>(
      bootstrap, std::move(drivers), facts_.host_of_rank, layout, stream, deadline_of(config));
  if (mapped_->windows().pairs().empty()) mapped_.reset();
}

bool CudaGroup::by_host_path(int peer) const {
  if (!peers_->access().any()) return false;
  return peers_->on_this_host(peer) ? !peers_->reaches(peer)
                                    : mapped_ != nullptr && mapped_->between(peer);
}

void CudaGroup::use_hybrid(const Config& config) {
  if (!peers_->has_hybrid_windows()) return;
  const tune::HybridLinks links =
      tune::hybrid_links(constants_, limits_.hybrid_channels, limits_.hybrid_slot_bytes);
  if (!tune::uses_hybrid_links(config.text(Setting::kHybrid), constants_, links)) return;
  facts_.hybrid = links;
  constexpr double kLong = 1e9;
  log::info(log::kTuning,
            "rank {}: the host's memory carries {:.1f}% of long operations, {:.1f}% of those in "
            "one direction",
            rank_, links.host_share(1, false, kLong) * 100, links.host_share(1, true, kLong) * 100);
}

CudaGroup::~CudaGroup() {
  abort();
  std::optional<executor::CurrentDevice> current;
  try {
    current.emplace(device_);
  } catch (const Error& error) {
    log::warn("rank {}: {}", rank_, error.what());
  }
  cudaDeviceSynchronize();
  copy_engines_.reset();
  maker_.reset();
  links_.reset();
  network_.reset();
  mapped_.reset();
  blocks_.reset();
  order_.reset();
  buffers_.reset();
  peers_.reset();
  clock_.reset();
  hybrid_timer_.reset();
  hybrid_times_.reset();
  hybrid_memory_.reset();
  times_.reset();
  times_memory_.reset();
  control_memory_.reset();
}

tune::Tuner CudaGroup::tuner(const Config& config,
                             std::shared_ptr<const topology::Topology> machine,
                             std::shared_ptr<tune::KeptPlans> plans) {
  return tune::device_tuner(config, facts_, limits_, constants_, schedules_, std::move(machine),
                            std::move(plans));
}

std::size_t CudaGroup::memory_bytes() const noexcept {
  const std::size_t slots = network_ != nullptr ? network_->gpu_memory_bytes() : 0;
  return peers_->device_bytes() + blocks_->bytes() + slots;
}

std::optional<std::string> CudaGroup::network_slots() const {
  if (network_ == nullptr) return std::nullopt;
  return network_->slots_on_gpu() ? "GPU memory" : "pinned memory";
}

// ---- collectives ------------------------------------------------------------------------

std::unique_ptr<PreparedCall> CudaGroup::prepare(const CollectiveCall& call, const Extent& extent,
                                                 std::shared_ptr<const tune::Choice> choice) {
  const executor::CurrentDevice current(device_);
  return maker_->make(call, extent, std::move(choice));
}

void CudaGroup::check_buffer(const void* buffer, std::size_t bytes, const char* name) const {
  if (bytes == 0) return;
  cudaPointerAttributes attributes{};
  executor::check_cuda(cudaPointerGetAttributes(&attributes, buffer), "cudaPointerGetAttributes");
  if (attributes.type == cudaMemoryTypeUnregistered) {
    throw Error(Errc::kInvalidArgument, "{}: {} is memory that no GPU can reach", name, buffer);
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device_) {
    throw Error(Errc::kInvalidArgument, "{}: {} is on GPU {}, the communicator works on GPU {}",
                name, buffer, attributes.device, device_);
  }
}

void CudaGroup::fill_reach(PreparedLaunch& launch, const CollectiveCall& call) const {
  launch.args.seen_in_process = false;
  launch.args.num_seen = 0;
  if (!launch.direct) return;
  const link::BufferRange input{call.input, launch.extent().input_bytes};
  const link::BufferRange output{call.output, launch.extent().output_bytes};
  const auto visible_here = [&](const link::BufferRange& range) {
    return range.bytes == 0 || range.begin == nullptr ||
           transport::window::is_ipc_capable(gpu_.cuda(), range.begin);
  };
  launch.args.seen_in_process = visible_here(input) && visible_here(output);
  for (int r = 0; r < size_ && launch.args.num_seen < executor::kMaxSeen; ++r) {
    if (peers_->same_process(r)) continue;
    if (const auto shift = buffers_->seen_by(r, input, output)) {
      launch.args.seen[launch.args.num_seen++] = {r, *shift};
    }
  }
  if (launch.args.num_seen > 0) {
    log::info(log::kColl, "rank {}: {} of {} bytes: {} rank(s) of other processes may read them",
              rank_, name(call.collective), std::max(input.bytes, output.bytes),
              launch.args.num_seen);
  }
}

bool CudaGroup::run(PreparedCall& prepared, const CollectiveCall& call, bool in_place,
                    const executor::CallTag& tag, DeviceStream stream) {
  last_launch_ = {};
  last_copied_ = false;
  if (call.count == 0) return true;
  auto& launch = static_cast<PreparedLaunch&>(prepared);
  const executor::CurrentDevice current(device_);
  const executor::RelaxedCapture relaxed;
  const auto on = static_cast<cudaStream_t>(stream);
  // First, since it may learn that a peer let go of a buffer.
  const executor::Capture capture = follow_last(on);
  // Repeated calls with the same buffers are the common case.
  if (call.input != launch.checked_input || call.output != launch.checked_output ||
      launch.buffers_seen != buffers_state_) {
    if (check_pointers_) {
      check_buffer(call.input, launch.extent().input_bytes, "sendbuf");
      check_buffer(call.output, launch.extent().output_bytes, "recvbuf");
    }
    launch.copied.reset();
    if (copy_engines_ != nullptr) {
      launch.copied = copy_engines_->copied(call, launch.extent(), *buffers_);
    }
    fill_reach(launch, call);
    launch.args.call.input = static_cast<const std::byte*>(call.input);
    launch.args.call.output = static_cast<std::byte*>(call.output);
    launch.checked_input = call.input;
    launch.checked_output = call.output;
    launch.buffers_seen = buffers_state_;
  }
  if (launch.copied.has_value()) {
    run_by_copy_engines(*launch.copied, tag, capture.number != 0, on);
    if (capture.number == 0) order_->mark(on);
    return true;
  }
  if (in_place && !launch.in_place_works) {
    throw Error(Errc::kInvalidUsage, "{} by {} cannot work in place", name(call.collective),
                launch.choice().algorithm);
  }
  launch.args.call.in_place = in_place;
  launch.args.call.tag = tag;
  launch.args.links.timeout_ns = timeout_ns_;
  last_launch_ = note_times(launch.args.links, launch.blocks);
  if (hybrid_timer_ != nullptr && capture.number == 0) note_hybrid(launch);
  if (capture.graph != nullptr && capture.number != launch.held_by) {
    link::hold_in_graph(capture.graph, {launch.programs, launch.begins});
    launch.held_by = capture.number;
  }
  start(executor::of(launch.kernels, launch.args), launch.blocks, launch.threads, &launch.args,
        launch.shared_bytes, on);
  if (capture.number == 0) order_->mark(on);
  if (copy_engines_ != nullptr) copy_engines_->note(tag, capture.number != 0);
  for (const trace::SentBytes& sent : launch.sent) count(sent.peer, sent.bytes);
  return true;
}

void CudaGroup::run_by_copy_engines(const CopiedCall& copied, const executor::CallTag& tag,
                                    bool captured, cudaStream_t stream) {
  executor::LaunchLinks noted;
  last_launch_ = note_times(noted, 1);
  copy_engines_->run(copied, tag, timeout_ns_, noted.stamps, captured, stream);
  last_copied_ = true;
  for (const trace::SentBytes& sent : copied.sent) count(sent.peer, sent.bytes);
}

void CudaGroup::run_copied(PreparedCall& prepared, const CollectiveCall& call,
                           const executor::CallTag& tag, DeviceStream stream) {
  const std::size_t bytes = prepared.extent().input_bytes;
  last_launch_ = {};
  last_copied_ = false;
  if (bytes == 0) return;
  const executor::CurrentDevice current(device_);
  const auto on = static_cast<cudaStream_t>(stream);
  if (check_pointers_) check_buffer(call.input, bytes, "sendbuf");
  void* copy = nullptr;
  executor::check_cuda(cudaMallocAsync(&copy, bytes, on), "cudaMallocAsync (a copy of sendbuf)");
  const cudaError_t copied = cudaMemcpyAsync(copy, call.input, bytes, cudaMemcpyDefault, on);
  CollectiveCall from_copy = call;
  from_copy.input = copy;
  try {
    executor::check_cuda(copied, "cudaMemcpyAsync (a copy of sendbuf)");
    run(prepared, from_copy, false, tag, stream);
  } catch (const Error&) {
    cudaFreeAsync(copy, on);
    throw;
  }
  executor::check_cuda(cudaFreeAsync(copy, on), "cudaFreeAsync (the copy of sendbuf)");
}

void CudaGroup::read_clock() {
  if (const auto reading = clock_->read()) {
    times_->calibrate({reading->device_ns, reading->ticks});
  } else {
    log::info(log::kInit, "rank {}: the clock of GPU {} was not read", rank_, device_);
  }
}

trace::StampRange CudaGroup::note_times(executor::LaunchLinks& links, unsigned blocks) {
  if (times_ == nullptr) return {};
  const trace::StampRange range = times_->next(blocks);
  links.stamps = times_->stamps(range);
  return range;
}

void CudaGroup::time_hybrid(std::function<void(const tune::HybridTimes&)> timed) {
  if (times_ == nullptr) {
    const executor::CurrentDevice current(device_);
    hybrid_memory_ = std::make_unique<executor::PinnedBuffer>(kLeastTimed * kTimesBytes);
    std::memset(hybrid_memory_->data(), 0, kLeastTimed * kTimesBytes);
    hybrid_times_ = std::make_unique<trace::DeviceTimes>(
        std::span(static_cast<std::uint64_t*>(hybrid_memory_->data()), 2 * kLeastTimed));
  }
  hybrid_timer_ =
      std::make_unique<HybridTimer>(times_ != nullptr ? *times_ : *hybrid_times_, std::move(timed));
}

void CudaGroup::note_hybrid(PreparedLaunch& launch) {
  if (times_ == nullptr) launch.args.links.stamps = {};
  const tune::Choice& choice = launch.choice();
  const schedule::Schedule& schedule = choice.schedule->schedule();
  if (tune::hybrid_channels_of(choice.routed) == 0 || has_root(schedule.collective) ||
      !hybrid_timer_->poll()) {
    return;
  }
  const tune::RoutedSchedule& routed = *choice.routed;
  if (launch.blocks != static_cast<unsigned>(schedule.num_channels())) return;
  trace::StampRange range = last_launch_;
  if (times_ == nullptr) {
    range = hybrid_times_->next(launch.blocks);
    launch.args.links.stamps = hybrid_times_->stamps(range);
  }
  if (range.blocks == 0) return;
  tune::HybridTimes known;
  known.collective = schedule.collective;
  known.scale = routed.hybrid_scale;
  known.share = routed.hybrid_share;
  known.bytes = static_cast<double>(launch.args.call.count) *
                static_cast<double>(launch.extent().element_bytes) * routed.hybrid_units;
  known.hops = routed.hybrid_hops;
  known.chunk_bytes = choice.chunk_bytes;
  hybrid_timer_->follow(range, static_cast<std::uint32_t>(routed.hybrid_channels), known);
}

bool CudaGroup::any_thread_enqueues(DeviceStream stream) const noexcept {
  const auto on = static_cast<cudaStream_t>(stream);
  if (on == nullptr || on == cudaStreamLegacy || on == cudaStreamPerThread) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  if (cudaStreamIsCapturing(on, &status) != cudaSuccess) (void)cudaGetLastError();
  return status == cudaStreamCaptureStatusNone;
}

void CudaGroup::connect_slots() {
  const auto limit = std::chrono::nanoseconds(timeout_ns_);
  const auto begin = std::chrono::steady_clock::now();
  while (!network_->connected()) {
    if (std::optional<Error> lost = stopped()) throw std::move(*lost);
    if (std::atomic_ref(control_->abort).load() != 0) {
      throw Error(Errc::kAborted, "rank {} was aborted while links were connected", rank_);
    }
    if (timeout_ns_ != 0 && std::chrono::steady_clock::now() - begin > limit) {
      throw Error(Errc::kTimeout,
                  "rank {}: links over {}, whose slots are in GPU memory, were not connected "
                  "within {:.3g} s",
                  rank_, network_->name(), std::chrono::duration<double>(limit).count());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

executor::Capture CudaGroup::follow_last(cudaStream_t stream) {
  if (network_ != nullptr) network_->wake();
  if (network_ != nullptr && network_->connects_first()) connect_slots();
  const executor::Capture capture = order_->follow(stream);
  if (capture.number == 0 && buffers_->unsettled() && order_->idle() && buffers_->settle()) {
    ++buffers_state_;
  }
  return capture;
}

void CudaGroup::start(const void* kernel, unsigned blocks, unsigned threads, void* args,
                      std::size_t shared, cudaStream_t stream) {
  if (shared > std::size_t{48} << 10) {
    executor::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(shared)),
                         "cudaFuncSetAttribute");
  }
  std::array<cudaLaunchAttribute, 2> attributes{};
  unsigned number = 0;
  // The next launch may begin while this one ends (CudaBlock::prologue()).
  if (can_overlap_) {
    cudaLaunchAttribute& overlap = attributes[number++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  // Blocks of a GPC share its output bandwidth; without clusters some GPCs have twice as many as
  // others.
  const auto whole = static_cast<unsigned>(limits_.cluster);
  // More than clusters_of() has made sure of would not all be on the GPU at once.
  const bool in_clusters = blocks >= 2 * whole && blocks <= executor::kMaxBlocks;
  const unsigned cluster = in_clusters ? std::gcd(blocks, whole) : 1;
  if (cluster > 1) attributes[number++] = cluster_attribute(cluster);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes.data();
  config.numAttrs = number;
  void* parameters[] = {args};
  executor::check_cuda(cudaLaunchKernelExC(&config, kernel, parameters), "cudaLaunchKernelExC");
}

// ---- registered buffers -----------------------------------------------------------------

std::uint64_t CudaGroup::register_buffer(const void* buffer, std::size_t bytes, Deadline deadline,
                                         link::MappedBuffers mapped, bool symmetric) {
  const executor::CurrentDevice current(device_);
  const executor::RelaxedCapture relaxed;
  if (buffers_->unsettled()) {
    order_->wait_until_idle();
    buffers_->settle();
  }
  const std::uint64_t number =
      buffers_->add({buffer, bytes}, deadline, std::move(mapped), symmetric);
  ++buffers_state_;
  return number;
}

void CudaGroup::deregister_buffer(std::uint64_t number) {
  const executor::CurrentDevice current(device_);
  const executor::RelaxedCapture relaxed;
  buffers_->remove(number);
  ++buffers_state_;
  // Closing memory may wait for the GPU, where an operation may wait for a rank of this thread that
  // has not been called yet.
  if (order_->idle()) buffers_->settle();
}

// ---- messages ---------------------------------------------------------------------------

namespace {

std::byte* buffer_of(const PointToPointCall& call) {
  return call.sends ? static_cast<std::byte*>(const_cast<void*>(call.input))
                    : static_cast<std::byte*>(call.output);
}

// Receives come to their meetings first: of two ranks that come at once with a send and a receive
// each either then copies one.
std::vector<const PointToPointCall*> receives_first(std::vector<const PointToPointCall*> wave) {
  std::stable_partition(wave.begin(), wave.end(),
                        [](const PointToPointCall* call) { return !call->sends; });
  return wave;
}

// Whether there is one in the other direction beside it.
bool is_exchanged(const std::vector<const PointToPointCall*>& wave, const PointToPointCall& call) {
  return std::ranges::any_of(wave, [&](const PointToPointCall* other) {
    return other->peer == call.peer && other->sends != call.sends;
  });
}

}  // namespace

void CudaGroup::show(Message& message) const {
  if (direct_ != Direct::kOn || !peers_->reaches(message.peer) ||
      message.protocol != Protocol::kSimple || !message.sends || message.bytes == 0) {
    return;
  }
  if (peers_->same_process(message.peer)) {
    message.visible = transport::window::is_ipc_capable(gpu_.cuda(), message.data);
  } else if (const auto shift = buffers_->seen_by(message.peer, {message.data, message.bytes})) {
    message.visible = true;
    message.shift = *shift;
    log::info(log::kP2p, "rank {}: send of {} bytes: rank {}, of another process, may read them",
              rank_, message.bytes, message.peer);
  }
}

std::optional<handshake::CopiedMessage> CudaGroup::by_copy_engines(const PointToPointCall& call,
                                                                   bool exchanged) {
  handshake::CopiedMessages& messages = *copy_engines_->messages();
  const std::size_t bytes = call.count * size_of(call.type);
  // Both ranks must find the same up to here.
  if (bytes < copy_engines_->message_bytes()) return {};
  std::byte* const data = buffer_of(call);
  handshake::MessageBuffer buffer{0, 0, bytes};
  const auto location = buffers_->symmetric_location({data, bytes});
  if (location.has_value() && (!exchanged || copy_engines_->takes_exchanges())) {
    buffer.window = location->number;
    buffer.offset = location->offset;
  }
  messages.set_timeout(std::chrono::nanoseconds(timeout_ns_));
  std::optional<handshake::CopiedMessage> message = messages.meet(
      call.peer, call.sends ? handshake::MessageEnd::kSends : handshake::MessageEnd::kReceives,
      buffer, reinterpret_cast<std::uint64_t>(data));
  if (message.has_value() && message->copies) {
    const link::BufferRange& window =
        buffers_->reached(message->theirs.window)[static_cast<std::size_t>(call.peer)];
    message->peers = reinterpret_cast<std::uint64_t>(window.begin) + message->theirs.offset;
  }
  return message;
}

std::vector<trace::StampRange> CudaGroup::launch_messages(
    const std::vector<const PointToPointCall*>& wave, cudaStream_t stream) {
  MessageArgs args{};
  args.links = links_->others(timeout_ns_);
  args.address_bytes = direct_ == Direct::kOff ? ~std::size_t{0} : LaunchMaker::kAddressBytes;
  args.check_tags = check_calls_;
  unsigned blocks = 0;
  unsigned threads = 0;
  for (const PointToPointCall* called : wave) {
    const PointToPointCall& call = *called;
    Message& message = args.messages[args.num_messages++];
    message.bytes = call.count * size_of(call.type);
    const tune::Choice choice = by_host_path(call.peer)
                                    ? pricing_->message_by_host_path(message.bytes)
                                    : pricing_->message(message.bytes);
    message.chunk_bytes = choice.chunk_bytes;
    message.peer = call.peer;
    message.first_block = static_cast<std::uint16_t>(blocks);
    message.channels = static_cast<std::uint16_t>(choice.channels);
    message.protocol = choice.protocol;
    message.sends = call.sends;
    message.ends =
        links_->message_ends(choice.protocol, call.peer, call.sends, limits_.message_channels);
    message.data = buffer_of(call);
    show(message);
    blocks += static_cast<unsigned>(choice.channels);
    threads = std::max(
        threads, executor::launch_threads(choice.protocol, static_cast<unsigned>(choice.threads)));
  }
  const trace::StampRange launch = note_times(args.links, blocks);
  start(executor::of(executor::cuda_message_kernels(), args), blocks, threads, &args, 0, stream);
  std::vector<trace::StampRange> parts(wave.size());
  for (std::size_t i = 0; i < wave.size() && launch.blocks != 0; ++i) {
    parts[i] = launch.part(args.messages[i].first_block, args.messages[i].channels);
  }
  return parts;
}

std::vector<DeviceGroup::MessageLaunch> CudaGroup::send_and_receive(
    const std::vector<PointToPointCall>& calls, DeviceStream stream) {
  const executor::CurrentDevice current(device_);
  const executor::RelaxedCapture relaxed;
  const auto on = static_cast<cudaStream_t>(stream);
  std::vector<MessageLaunch> runs(calls.size());
  const auto index = [&](const PointToPointCall* call) {
    return static_cast<std::size_t>(call - calls.data());
  };
  // To and from this rank itself: pairs in order.
  std::vector<const PointToPointCall*> own_sends;
  std::vector<const PointToPointCall*> own_receives;
  // All others in waves of one message for each peer and direction, and those of many peers by
  // their distance in ranks: both ranks of a message have it in the same wave.
  std::map<std::pair<int, int>, std::vector<const PointToPointCall*>> waves;
  std::map<std::pair<int, bool>, int> next_wave;
  for (const PointToPointCall& call : calls) {
    if (call.peer == rank_) {
      (call.sends ? own_sends : own_receives).push_back(&call);
      continue;
    }
    const int distance = (call.sends ? call.peer - rank_ : rank_ - call.peer) + size_;
    waves[{next_wave[{call.peer, call.sends}]++, distance % size_ / kPeersAtOnce}].push_back(&call);
  }
  if (own_sends.size() != own_receives.size()) {
    throw Error(Errc::kInvalidUsage, "rank {} sends itself {} messages and receives {}", rank_,
                own_sends.size(), own_receives.size());
  }
  for (std::size_t i = 0; i < own_sends.size(); ++i) {
    const std::size_t bytes = own_sends[i]->count * size_of(own_sends[i]->type);
    if (bytes == 0) continue;
    const executor::Capture capture = follow_last(on);
    executor::check_cuda(
        cudaMemcpyAsync(own_receives[i]->output, own_sends[i]->input, bytes, cudaMemcpyDefault, on),
        "cudaMemcpyAsync (a message to this rank itself)");
    if (capture.number == 0) order_->mark(on);
  }
  for (auto& [number, wave] : waves) {
    const executor::Capture capture = follow_last(on);
    if (check_pointers_) {
      for (const PointToPointCall* call : wave) {
        check_buffer(buffer_of(*call), call->count * size_of(call->type),
                     call->sends ? "sendbuf" : "recvbuf");
      }
    }
    std::vector<handshake::CopiedMessage> copied;
    if (capture.number == 0 && copy_engines_ != nullptr && copy_engines_->messages() != nullptr) {
      for (const PointToPointCall* call : receives_first(wave)) {
        if (const auto message = by_copy_engines(*call, is_exchanged(wave, *call))) {
          copied.push_back(*message);
          runs[index(call)].copied = true;
        }
      }
      std::erase_if(wave, [&](const PointToPointCall* call) { return runs[index(call)].copied; });
    }
    // Kernels and copies run at once: a peer may call for them in any order.
    const auto cu_stream = reinterpret_cast<transport::window::CuStream>(on);
    if (!copied.empty()) copy_engines_->messages()->begin(copied, cu_stream);
    if (!wave.empty()) {
      const std::vector<trace::StampRange> parts = launch_messages(wave, on);
      for (std::size_t i = 0; i < parts.size(); ++i) runs[index(wave[i])].launch = parts[i];
    }
    if (!copied.empty()) copy_engines_->messages()->end(copied, cu_stream);
    if (capture.number == 0) order_->mark(on);
  }
  for (const PointToPointCall& call : calls) {
    if (call.sends && call.peer != rank_) count(call.peer, call.count * size_of(call.type));
  }
  return runs;
}

// ---- faults -----------------------------------------------------------------------------

void CudaGroup::abort() noexcept {
  if (control_ != nullptr) std::atomic_ref(control_->abort).store(1);
}

std::optional<Error> CudaGroup::stopped() const {
  if (network_ != nullptr) {
    if (std::optional<Error> lost = network_->failure()) return lost;
  }
  if (mapped_ != nullptr) {
    if (std::optional<Error> lost = mapped_->windows().lost()) return lost;
  }
  return stop_error(control_->stop, rank_);
}

std::optional<executor::CallTag> CudaGroup::stopped_in() const { return stop_call(control_->stop); }

void CudaGroup::finish() {
  const executor::CurrentDevice current(device_);
  order_->wait_until_idle();
  if (times_ != nullptr) read_clock();
  if (network_ != nullptr && !network_->drain(deadline_after(kFarewellPatience))) {
    log::warn("rank {} leaves before all data of its kernels was sent", rank_);
  }
}

void CudaGroup::say_farewell(bootstrap::Bootstrap& bootstrap) {
  const executor::CurrentDevice current(device_);
  // Before the others hear of it: who has left may free its memory.
  buffers_->close_all();
  if (mapped_ != nullptr) mapped_->windows().say_goodbye();
  // A peer's kernels may still write here. Ranks of this process share the window's ownership;
  // those of other processes say when they are done.
  for (int r = 0; r < size_; ++r) {
    if (!peers_->same_process(r)) bootstrap.send(r, kFarewellTag, {});
  }
  const Deadline patience = deadline_after(kFarewellPatience);
  for (int r = 0; r < size_; ++r) {
    if (peers_->same_process(r)) continue;
    try {
      bootstrap.recv(r, kFarewellTag, patience);
    } catch (const Error&) {
      // It may be busy leaving another communicator first. Its writes fail at worst.
      log::warn("rank {} frees its window before rank {} has finished", rank_, r);
      return;
    }
  }
}

// ---- making one -------------------------------------------------------------------------

std::unique_ptr<DeviceGroup> attach_device(bootstrap::Bootstrap& bootstrap, const Config& config,
                                           Runtime& runtime, const tune::GroupFacts& facts,
                                           const link::Rails& rails, executor::Traffic* traffic,
                                           int device, BlockBounds blocks) {
  return std::make_unique<CudaGroup>(bootstrap, config, runtime, facts, rails, traffic, device,
                                     blocks);
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) {
    cudaGetLastError();
    int driver = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
      return "no NVIDIA driver is installed";
    }
    return fmt::format("CUDA: {}", cudaGetErrorString(result));
  }
  return count == 0 ? "there is no GPU" : "";
}

int current_device() {
  int device = 0;
  executor::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

}  // namespace ropewalk::comm
