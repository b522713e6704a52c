#include "comm/cuda/cuda_group.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "comm/scaling.h"
#include "core/log.h"
#include "core/mutex.h"
#include "executor/block/pack.h"
#include "executor/call_history.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/kernel.h"
#include "executor/cuda/kernel_table.h"
#include "executor/program.h"
#include "link/cuda/ipc_sharing.h"
#include "schedule/lags.h"
#include "schedule/layout.h"
#include "schedule/repeat.h"

namespace ropewalk::comm {
namespace {

using executor::kFlaggedSlots;
using executor::kNumProtocols;
using executor::LaunchArgs;
using executor::Message;
using executor::MessageArgs;
using executor::Protocol;

constexpr int kChannels = 64;
constexpr std::size_t kGranuleBytes = 128;
constexpr std::size_t kLlSlot = 8192;
// Of ll128, with one peer; more peers share it. A multiple of a line's 120 bytes.
constexpr std::size_t kLl128Slot = std::size_t{512} * 8 * executor::kLineWords;
constexpr std::uint32_t kSimpleSlots = 4;
constexpr std::size_t kLargestSlot = std::size_t{512} << 10;
constexpr std::size_t kKeptWays = 16;
// Of all peers together, unless one of them was given more.
constexpr std::size_t kMostWindowBytes = std::size_t{256} << 20;
constexpr std::size_t kHostWindowShare = 2;
// Shorter chunks are better staged: reading through a given address waits for the reader's answer.
constexpr std::size_t kAddressBytes = std::size_t{16} << 10;

constexpr std::uint32_t kFarewellTag = 0x44000000;
constexpr std::chrono::seconds kFarewellPatience{2};

std::size_t index(Protocol protocol) { return static_cast<std::size_t>(protocol); }

executor::FifoShape simple_shape(std::size_t budget, int ranks) {
  executor::FifoShape shape;
  shape.headers = 2 * kSimpleSlots;
  shape.slots = kSimpleSlots;
  const std::size_t each =
      budget / (static_cast<std::size_t>(kChannels * std::max(1, ranks - 1)) * kSimpleSlots);
  shape.slot_bytes = static_cast<std::uint32_t>(std::clamp<std::size_t>(each, 4096, kLargestSlot) /
                                                kGranuleBytes * kGranuleBytes);
  return shape;
}

executor::FifoShape flagged_shape(std::size_t slot_bytes) {
  executor::FifoShape shape;
  shape.headers = kFlaggedSlots;
  shape.slots = kFlaggedSlots;
  shape.slot_bytes = static_cast<std::uint32_t>(slot_bytes);
  return shape;
}

std::size_t ll128_slot(int ranks) {
  constexpr std::size_t kLine = std::size_t{8} * executor::kLineWords;
  const auto peers = static_cast<std::size_t>(std::max(1, ranks - 1));
  return std::max(kLl128Slot / kLine / peers, std::size_t{16}) * kLine;
}

// Collective.
int fewest_multiprocessors(bootstrap::Bootstrap& bootstrap, int device, Deadline deadline) {
  std::vector<int> all(static_cast<std::size_t>(bootstrap.size()));
  int& own = all[static_cast<std::size_t>(bootstrap.rank())];
  executor::check_cuda(cudaDeviceGetAttribute(&own, cudaDevAttrMultiProcessorCount, device),
                       "asking for the number of multiprocessors");
  bootstrap.all_gather(std::as_writable_bytes(std::span(all)), sizeof own, deadline);
  return *std::min_element(all.begin(), all.end());
}

bool same_way(const CollectiveCall& a, const CollectiveCall& b) {
  return a.collective == b.collective && a.count == b.count && a.type == b.type && a.op == b.op &&
         a.root == b.root && a.scalar == b.scalar;
}

}  // namespace

CudaGroup::CudaGroup(bootstrap::Bootstrap& bootstrap, const Config& config, Runtime& runtime,
                     int device)
    : device_(device),
      rank_(bootstrap.rank()),
      size_(bootstrap.size()),
      direct_(config.text(Setting::kDirectBuffers) == "off"  ? Direct::kOff
              : config.text(Setting::kDirectBuffers) == "on" ? Direct::kOn
                                                             : Direct::kAuto),
      check_pointers_(config.flag(Setting::kCheckPointers)),
      check_calls_(config.flag(Setting::kCheckCalls)),
      timeout_ns_(static_cast<std::uint64_t>(config.duration(Setting::kTimeout).count())),
      schedules_(runtime.schedules()) {
  if (size_ > static_cast<int>(executor::kMaxPeers)) {
    throw Error(Errc::kInvalidUsage, "{} ranks with GPUs on one host; at most {} are supported",
                size_, executor::kMaxPeers);
  }
  const executor::CurrentDevice current(device_);
  layout_.ranks = size_;
  layout_.channels = kChannels;
  layout_.shapes[index(Protocol::kLl)] = flagged_shape(kLlSlot);
  peers_ = std::make_unique<link::DevicePeers>(bootstrap, config, runtime.token(), device_);
  // Without lines that arrive whole there is no ll128. Pinned memory is dearer than that of a GPU.
  layout_.shapes[index(Protocol::kLl128)] =
      flagged_shape(peers_->whole_lines() ? ll128_slot(size_) : 0);
  std::size_t budget = config.bytes(Setting::kDeviceWindow);
  const auto others = static_cast<std::size_t>(std::max(1, size_ - 1));
  budget = std::min(budget * others, std::max(budget, kMostWindowBytes));
  if (!peers_->peer_access()) budget /= kHostWindowShare;
  layout_.shapes[index(Protocol::kSimple)] = simple_shape(budget, size_);
  int capability = 0;
  executor::check_cuda(
      cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device_),
      "asking for the compute capability");
  can_overlap_ = capability >= 9 && config.flag(Setting::kOverlapLaunches);
  void* control = nullptr;
  executor::check_cuda(cudaHostAlloc(&control, sizeof(executor::Control), cudaHostAllocMapped),
                       "taking pinned memory");
  control_ = new (control) executor::Control;
  void* mapped = nullptr;
  executor::check_cuda(cudaHostGetDevicePointer(&mapped, control, 0), "mapping pinned memory");
  control_on_device_ = static_cast<executor::Control*>(mapped);
  executor::check_cuda(cudaStreamCreateWithFlags(&setup_stream_, cudaStreamNonBlocking),
                       "making a stream");
  executor::check_cuda(cudaEventCreateWithFlags(&last_event_, cudaEventDisableTiming),
                       "making an event");

  peers_->open_windows(bootstrap, layout_.bytes(), setup_stream_, deadline_of(config));
  if (!peers_->peer_access()) direct_ = Direct::kOff;
  std::vector<bool> elsewhere;
  for (int r = 0; r < size_; ++r) elsewhere.push_back(!peers_->same_process(r));
  buffers_ = std::make_unique<link::RegisteredBuffers>(
      bootstrap, std::make_unique<link::IpcSharing>(device_), std::move(elsewhere),
      direct_ != Direct::kOff);
  lay_links();
  bootstrap.barrier(deadline_of(config));

  // Blocks wait for their peers' ones: all of a launch must be on the GPU at once, one on each
  // multiprocessor, on the smallest GPU of all. A launch of messages has up to two for each peer.
  const int blocks = fewest_multiprocessors(bootstrap, device_, deadline_of(config));
  max_channels_ = std::min(kChannels, blocks);
  tune::DeviceTuner::Limits limits;
  limits.channels = max_channels_;
  limits.message_channels = std::clamp(blocks / (2 * std::max(1, size_ - 1)), 1, max_channels_);
  limits.whole_lines = peers_->whole_lines();
  for (std::size_t p = 0; p < kNumProtocols; ++p) {
    limits.slot_bytes[p] = layout_.shapes[p].slot_bytes;
  }
  tuner_ = std::make_unique<tune::DeviceTuner>(config, size_, limits,
                                               constants(bootstrap, config, limits), schedules_);
  log::info(log::kInit, "rank {} of {} works on GPU {}: {} MiB of device memory", rank_, size_,
            device_, memory_bytes() >> 20);
}

CudaGroup::~CudaGroup() {
  abort();
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
  prepared_.clear();
  ways_.clear();
  if (last_event_ != nullptr) cudaEventDestroy(last_event_);
  if (setup_stream_ != nullptr) cudaStreamDestroy(setup_stream_);
  if (control_ != nullptr) cudaFreeHost(control_);
  for (auto* ends : {&send_ends_, &receive_ends_}) {
    for (link::DeviceMemory& memory : *ends) memory = link::DeviceMemory();
  }
  boards_ = link::DeviceMemory();
  buffers_.reset();
  peers_.reset();
  cudaSetDevice(before);
}

template <typename T>
link::DeviceMemory CudaGroup::device_copy(const std::vector<T>& values) {
  const executor::RelaxedCapture relaxed;
  link::DeviceMemory memory(values.size() * sizeof(T));
  executor::check_cuda(cudaMemcpyAsync(memory.data(), values.data(), memory.bytes(),
                                       cudaMemcpyHostToDevice, setup_stream_),
                       "writing to device memory");
  executor::check_cuda(cudaStreamSynchronize(setup_stream_), "writing to device memory");
  return memory;
}

void CudaGroup::lay_links() {
  const auto n = static_cast<std::size_t>(kChannels * size_);
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    std::vector<executor::BlockSendEnd> sends(n);
    std::vector<executor::BlockReceiveEnd> receives(n);
    for (int c = 0; c < kChannels; ++c) {
      for (int r = 0; r < size_; ++r) {
        const auto i = static_cast<std::size_t>(c * size_ + r);
        sends[i].peer = receives[i].peer = r;
        if (r == rank_) continue;
        std::byte* theirs = peers_->window(r);
        sends[i].memory = theirs + layout_.link_offset(protocol, c, r, rank_);
        sends[i].consumed_at = reinterpret_cast<std::uint64_t*>(
            peers_->window(rank_) + layout_.counter_offset(protocol, c, r));
        sends[i].shape = layout_.shapes[index(protocol)];
        receives[i].memory = peers_->window(rank_) + layout_.link_offset(protocol, c, rank_, r);
        receives[i].consumed_at =
            reinterpret_cast<std::uint64_t*>(theirs + layout_.counter_offset(protocol, c, rank_));
        receives[i].shape = sends[i].shape;
      }
    }
    send_ends_[index(protocol)] = device_copy(sends);
    receive_ends_[index(protocol)] = device_copy(receives);
  }
  std::vector<std::byte*> boards;
  for (int r = 0; r < size_; ++r) {
    boards.push_back(peers_->window(r) + layout_.board_offset(rank_));
  }
  boards_ = device_copy(boards);
}

executor::LaunchLinks CudaGroup::links_of(Protocol protocol) const {
  executor::LaunchLinks links;
  links.sends = reinterpret_cast<executor::BlockSendEnd*>(send_ends_[index(protocol)].data());
  links.receives =
      reinterpret_cast<executor::BlockReceiveEnd*>(receive_ends_[index(protocol)].data());
  links.control = control_on_device_;
  links.timeout_ns = timeout_ns_;
  links.boards = reinterpret_cast<executor::CallTag* const*>(boards_.data());
  links.board =
      reinterpret_cast<const executor::CallTag*>(peers_->window(rank_) + layout_.board_offset(0));
  links.num_ranks = static_cast<std::uint32_t>(size_);
  links.rank = static_cast<std::uint32_t>(rank_);
  return links;
}

std::size_t CudaGroup::memory_bytes() const noexcept {
  std::size_t total = peers_->device_bytes();
  for (const auto* ends : {&send_ends_, &receive_ends_}) {
    for (const link::DeviceMemory& memory : *ends) total += memory.bytes();
  }
  for (const auto& [key, prepared] : prepared_) total += prepared.programs.bytes();
  return total;
}

// ---- collectives ------------------------------------------------------------------------

void CudaGroup::use_schedule(std::shared_ptr<const schedule::Checked> checked) {
  const schedule::Schedule& schedule = checked->schedule();
  if (schedule.num_channels() > max_channels_) {
    throw Error(Errc::kInvalidArgument, "the schedule has {} channels; these GPUs have {}",
                schedule.num_channels(), max_channels_);
  }
  drop_given();
  given_[schedule.collective] = std::move(checked);
}

void CudaGroup::forget_schedules() {
  drop_given();
  given_.clear();
}

void CudaGroup::drop_given() {
  while (!ways_.empty()) drop_last_way();
  for (auto entry = prepared_.begin(); entry != prepared_.end();) {
    const auto next = std::next(entry);
    if (std::get<0>(entry->first) == tune::kGivenSchedule) {
      retired_.push_back(std::move(entry->second.programs));
      prepared_.erase(entry);
    }
    entry = next;
  }
}

void CudaGroup::drop_last_way() {
  retired_.push_back(std::move(ways_.back()->begins));
  ways_.pop_back();
}

const schedule::Checked* CudaGroup::given_for(const CollectiveCall& call) const {
  const auto found = given_.find(call.collective);
  if (found == given_.end()) return nullptr;
  const schedule::Checked& given = *found->second;
  return has_root(call.collective) && given.schedule().root != call.root ? nullptr : &given;
}

CudaGroup::Prepared& CudaGroup::prepared(const CollectiveCall& call,
                                         const tune::DeviceChoice& choice,
                                         const schedule::Checked* given) {
  const int root = has_root(call.collective) ? call.root : 0;
  const bool flagged = choice.protocol != Protocol::kSimple;
  Prepared& entry = prepared_[{choice.algorithm, call.collective, root, choice.channels, flagged}];
  if (entry.checked != nullptr) return entry;
  std::shared_ptr<const schedule::Checked> checked;
  if (given != nullptr) {
    const schedule::Schedule& one = given->schedule();
    checked = std::make_shared<const schedule::Checked>(schedule::Checked::from(
        schedule::repeated(one, choice.channels / one.num_channels()), given->slots()));
  } else {
    checked = schedules_.get(choice.algorithm, {call.collective, size_, root, choice.channels});
  }
  const int channels = checked->schedule().num_channels();
  std::vector<executor::Program> programs;
  for (int c = 0; c < channels; ++c) {
    programs.push_back(executor::make_program(checked->schedule(), checked->report(), rank_, c));
    if (flagged) continue;
    const auto lags = schedule::find_lags(checked->schedule(), c, kSimpleSlots);
    executor::set_lags(programs.back(), lags[static_cast<std::size_t>(rank_)]);
  }
  const executor::PackedPrograms packed =
      flagged ? executor::pack_flagged(programs) : executor::pack(programs);
  entry.programs = device_copy(packed.bytes);
  entry.program_bytes = packed.stride;
  entry.room = packed.room;
  entry.max_chunks = packed.max_chunks;
  entry.checked = std::move(checked);
  return entry;
}

CudaGroup::Way& CudaGroup::way_of(const CollectiveCall& call, bool in_place) {
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    if (same_way(ways_[i]->call, call) && ways_[i]->in_place == in_place) {
      if (i > 0)
        std::rotate(ways_.begin(), ways_.begin() + static_cast<long>(i),
                    ways_.begin() + static_cast<long>(i) + 1);
      return *ways_.front();
    }
  }
  auto way = std::make_unique<Way>();
  way->call = call;
  way->call.input = nullptr;
  way->call.output = nullptr;
  way->in_place = in_place;
  const std::size_t element = size_of(call.type);
  const schedule::Checked* given = given_for(call);
  const std::size_t unit_bytes = call.count * element;
  way->choice =
      given != nullptr
          ? tuner_->choose_given(*given, unit_bytes)
          : tuner_->choose(call.collective, has_root(call.collective) ? call.root : 0, unit_bytes);
  const tune::DeviceChoice& choice = way->choice;
  Prepared& program = prepared(call, choice, given);
  const schedule::Schedule& schedule = program.checked->schedule();
  if (in_place && !program.checked->report().in_place) {
    throw Error(Errc::kInvalidUsage, "{} by {} cannot work in place", name(call.collective),
                choice.algorithm);
  }

  LaunchArgs& args = way->args;
  args = LaunchArgs{};
  args.links = links_of(choice.protocol);
  const bool combines = reduces(call.collective);
  const Scaling scaling = scaling_of(call, size_);
  executor::Call& walker = args.call;
  // What is only moved is moved as bytes.
  walker.type = combines ? call.type : DataType::kUint8;
  walker.element_bytes = combines ? element : 1;
  walker.count = combines ? call.count : call.count * element;
  walker.op = call.op;
  walker.scaled = scaling.scaled;
  walker.scalar = scaling.scalar;
  walker.divisor = scaling.divisor;
  walker.in_place = in_place;
  walker.check_tags = check_calls_;
  // Reading a peer's memory while it reads this one's is slower than both writing; one way only, it
  // saves a copy.
  way->direct = choice.protocol == Protocol::kSimple && direct_ != Direct::kOff &&
                (direct_ == Direct::kOn || has_root(call.collective));
  walker.address_bytes = way->direct ? kAddressBytes : ~std::size_t{0};
  const std::size_t granule = std::max<std::size_t>(1, kGranuleBytes / walker.element_bytes);
  const int channels = schedule.num_channels();
  RW_ASSERT(channels <= static_cast<int>(executor::kMaxBlocks) && channels <= kChannels);
  const auto up = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
  const auto parts = static_cast<std::size_t>(schedule.parts);
  const bool even = std::all_of(schedule.weight.begin(), schedule.weight.end(),
                                [&](int weight) { return weight == schedule.weight.front(); });
  args.share = up(up(walker.count, static_cast<std::size_t>(channels)), granule) * granule;
  if (!even) {
    std::vector<std::uint64_t> begins;
    args.share = 0;
    for (int c = 0; c < channels; ++c) {
      const schedule::Range range =
          schedule::channel_range(walker.count, schedule.weight.data(), channels, c, granule);
      begins.push_back(range.begin);
      args.share = std::max(args.share, range.count);
    }
    begins.push_back(walker.count);
    way->begins = device_copy(begins);
    args.begins = reinterpret_cast<const std::uint64_t*>(way->begins.data());
  }
  args.part_length = up(up(args.share, parts), granule) * granule;
  args.chunk_length = std::max<std::size_t>(1, choice.chunk_bytes / walker.element_bytes);
  if (choice.protocol != Protocol::kSimple) {
    // Rounds of one size, each a whole number of what the protocol moves at once.
    const std::size_t rounds = up(args.part_length, args.chunk_length);
    const std::size_t at_once = choice.protocol == Protocol::kLl ? 8 : 8 * executor::kLineWords;
    const std::size_t chunk_bytes =
        up(up(args.part_length, rounds) * walker.element_bytes, at_once) * at_once;
    args.chunk_length = std::min(args.chunk_length, chunk_bytes / walker.element_bytes);
    args.chunk_stride = static_cast<std::uint32_t>(executor::flagged_bytes(
        choice.protocol, up(args.chunk_length * walker.element_bytes, at_once) * at_once));
    args.slot_stride = static_cast<std::uint32_t>(executor::flagged_bytes(
        choice.protocol, layout_.shapes[index(choice.protocol)].slot_bytes));
    RW_ASSERT(args.chunk_stride * program.max_chunks <= args.slot_stride);
  }
  args.rounds = static_cast<std::uint32_t>(up(args.part_length, args.chunk_length));
  args.program_bytes = program.program_bytes;
  args.room = program.room;
  args.programs = program.programs.data();
  const auto units = [&](int n) { return static_cast<std::size_t>(n) * call.count * element; };
  way->input_bytes = units(schedule::input_units(call.collective, size_, call.root, rank_));
  args.output_bytes = units(schedule::output_units(call.collective, size_, call.root, rank_));
  way->kernel = executor::cuda_kernel(choice.protocol, call.type, call.op, combines);
  way->shared_bytes = executor::shared_bytes(args, choice.protocol);
  way->choice.channels =
      even ? static_cast<int>(std::min(up(walker.count, args.share), std::size_t(channels)))
           : channels;
  if (ways_.size() == kKeptWays) drop_last_way();
  ways_.insert(ways_.begin(), std::move(way));
  return *ways_.front();
}

void CudaGroup::check_buffer(const void* buffer, std::size_t bytes, const char* name) const {
  if (bytes == 0) return;
  cudaPointerAttributes attributes{};
  executor::check_cuda(cudaPointerGetAttributes(&attributes, buffer), "looking at a buffer");
  if (attributes.type == cudaMemoryTypeUnregistered) {
    throw Error(Errc::kInvalidArgument, "{}: {} is memory that no GPU can reach", name, buffer);
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device_) {
    throw Error(Errc::kInvalidArgument, "{}: {} is on GPU {}, the communicator works on GPU {}",
                name, buffer, attributes.device, device_);
  }
}

void CudaGroup::fill_reach(Way& way, const CollectiveCall& call) const {
  if (!way.direct) return;
  const link::BufferRange input{call.input, way.input_bytes};
  const link::BufferRange output{call.output, way.args.output_bytes};
  const auto visible_here = [](const link::BufferRange& range) {
    return range.bytes == 0 || range.begin == nullptr || link::from_cuda_malloc(range.begin);
  };
  const bool in_process = visible_here(input) && visible_here(output);
  way.args.visible = 0;
  int elsewhere = 0;
  for (int r = 0; r < size_; ++r) {
    if (peers_->same_process(r)) {
      if (in_process) way.args.visible |= 1U << r;
    } else if (const auto shift = buffers_->seen_by(r, input, output)) {
      way.args.visible |= 1U << r;
      way.args.shifts[r] = *shift;
      ++elsewhere;
    }
  }
  if (elsewhere > 0) {
    log::info(log::kColl, "rank {}: {} of {} bytes: {} rank(s) of other processes may read them",
              rank_, name(call.collective), std::max(input.bytes, output.bytes), elsewhere);
  }
}

void CudaGroup::show(Message& message) const {
  if (direct_ != Direct::kOn || message.protocol != Protocol::kSimple || !message.sends ||
      message.bytes == 0) {
    return;
  }
  if (peers_->same_process(message.peer)) {
    message.visible = link::from_cuda_malloc(message.data);
  } else if (const auto shift = buffers_->seen_by(message.peer, {message.data, message.bytes})) {
    message.visible = true;
    message.shift = *shift;
    log::info(log::kP2p, "rank {}: send of {} bytes: rank {}, of another process, may read them",
              rank_, message.bytes, message.peer);
  }
}

void CudaGroup::launch(const CollectiveCall& call, bool in_place, const executor::CallTag& tag,
                       DeviceStream stream) {
  if (call.count == 0) return;
  const executor::CurrentDevice current(device_);
  const executor::RelaxedCapture relaxed;
  Way& way = way_of(call, in_place);
  // Repeated calls with the same buffers are the common case.
  if (call.input != way.checked_input || call.output != way.checked_output) {
    if (check_pointers_) {
      check_buffer(call.input, way.input_bytes, "sendbuf");
      check_buffer(call.output, way.args.output_bytes, "recvbuf");
    }
    fill_reach(way, call);
    way.args.call.input = static_cast<const std::byte*>(call.input);
    way.args.call.output = static_cast<std::byte*>(call.output);
    way.checked_input = call.input;
    way.checked_output = call.output;
  }
  way.args.call.tag = tag;
  way.args.links.timeout_ns = timeout_ns_;
  start(way.kernel, static_cast<unsigned>(way.choice.channels),
        executor::launch_threads(way.choice.protocol, static_cast<unsigned>(way.choice.threads)),
        &way.args, way.shared_bytes, static_cast<cudaStream_t>(stream));
}

void CudaGroup::launch_copied(const CollectiveCall& call, const Extent& extent,
                              const executor::CallTag& tag, DeviceStream stream) {
  if (extent.input_bytes == 0) return;
  const executor::CurrentDevice current(device_);
  const auto on = static_cast<cudaStream_t>(stream);
  if (check_pointers_) check_buffer(call.input, extent.input_bytes, "sendbuf");
  void* copy = nullptr;
  executor::check_cuda(cudaMallocAsync(&copy, extent.input_bytes, on),
                       "taking memory for a copy of sendbuf");
  const cudaError_t copied =
      cudaMemcpyAsync(copy, call.input, extent.input_bytes, cudaMemcpyDefault, on);
  CollectiveCall from_copy = call;
  from_copy.input = copy;
  try {
    executor::check_cuda(copied, "copying sendbuf");
    launch(from_copy, false, tag, stream);
  } catch (const Error&) {
    cudaFreeAsync(copy, on);
    throw;
  }
  executor::check_cuda(cudaFreeAsync(copy, on), "freeing the copy of sendbuf");
}

std::string CudaGroup::describe_way(const CollectiveCall& call) {
  if (call.count == 0) return "nothing";
  const executor::CurrentDevice current(device_);
  const tune::DeviceChoice& choice = way_of(call, false).choice;
  return fmt::format("{} {} {}x{} chunk {}", choice.algorithm, executor::name(choice.protocol),
                     choice.channels, choice.threads, choice.chunk_bytes);
}

bool CudaGroup::follow_last(cudaStream_t stream) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  executor::check_cuda(cudaStreamIsCapturing(stream, &capturing),
                       "asking a stream whether it captures");
  if (capturing != cudaStreamCaptureStatusNone) {
    // A graph's own order holds within it; what ran before was not captured.
    captured_ = true;
    return false;
  }
  // The last stream itself may be gone by now, and another one have its address.
  unsigned long long id = 0;
  executor::check_cuda(cudaStreamGetId(stream, &id), "asking for a stream's number");
  if (launched_ && id != last_stream_) {
    executor::check_cuda(cudaStreamWaitEvent(stream, last_event_, 0), "ordering two streams");
  }
  if (buffers_->unsettled() && idle()) buffers_->settle();
  last_stream_ = id;
  return true;
}

bool CudaGroup::idle() const {
  if (captured_) return false;
  if (!launched_) return true;
  const cudaError_t ended = cudaEventQuery(last_event_);
  if (ended != cudaSuccess) cudaGetLastError();
  return ended == cudaSuccess;
}

void CudaGroup::wait_until_idle() const {
  if (launched_)
    executor::check_cuda(cudaEventSynchronize(last_event_), "waiting for the last operation");
  if (captured_) executor::check_cuda(cudaDeviceSynchronize(), "waiting for graphs");
}

void CudaGroup::mark_last(cudaStream_t stream) {
  executor::check_cuda(cudaEventRecord(last_event_, stream), "marking a stream");
  launched_ = true;
}

void CudaGroup::start(const void* kernel, unsigned blocks, unsigned threads, void* args,
                      std::size_t shared, cudaStream_t stream) {
  const bool ordered = follow_last(stream);
  if (shared > std::size_t{48} << 10) {
    executor::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(shared)),
                         "asking for shared memory");
  }
  // The next launch may begin while this one ends (CudaBlock::prologue()).
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = can_overlap_ ? 1 : 0;
  void* parameters[] = {args};
  executor::check_cuda(cudaLaunchKernelExC(&config, kernel, parameters), "starting a kernel");
  if (ordered) mark_last(stream);
}

// ---- registered buffers -----------------------------------------------------------------

std::uint64_t CudaGroup::register_buffer(const void* buffer, std::size_t bytes, Deadline deadline) {
  const executor::CurrentDevice current(device_);
  const executor::RelaxedCapture relaxed;
  if (buffers_->unsettled()) {
    wait_until_idle();
    buffers_->settle();
  }
  const std::uint64_t number = buffers_->add({buffer, bytes}, deadline);
  forget_buffers();
  return number;
}

void CudaGroup::deregister_buffer(std::uint64_t number) {
  const executor::CurrentDevice current(device_);
  const executor::RelaxedCapture relaxed;
  buffers_->remove(number);
  forget_buffers();
  // Closing memory may wait for the GPU, where an operation may wait for a rank of this thread that
  // has not been called yet.
  if (idle()) buffers_->settle();
}

void CudaGroup::forget_buffers() noexcept {
  for (const std::unique_ptr<Way>& way : ways_) {
    way->checked_input = way->checked_output = nullptr;
    way->args.visible = 0;
  }
}

// ---- messages ---------------------------------------------------------------------------

void CudaGroup::launch(const std::vector<PointToPointCall>& calls, DeviceStream stream) {
  const executor::CurrentDevice current(device_);
  const executor::RelaxedCapture relaxed;
  const auto on = static_cast<cudaStream_t>(stream);
  // To and from this rank itself: pairs in order.
  std::vector<const PointToPointCall*> own_sends;
  std::vector<const PointToPointCall*> own_receives;
  // All others in waves of one message for each peer and direction.
  std::vector<std::vector<PointToPointCall>> waves;
  std::map<std::pair<int, bool>, std::size_t> next_wave;
  for (const PointToPointCall& call : calls) {
    if (call.peer == rank_) {
      (call.sends ? own_sends : own_receives).push_back(&call);
      continue;
    }
    const std::size_t wave = next_wave[{call.peer, call.sends}]++;
    if (wave == waves.size()) waves.emplace_back();
    waves[wave].push_back(call);
  }
  if (own_sends.size() != own_receives.size()) {
    throw Error(Errc::kInvalidUsage, "rank {} sends itself {} messages and receives {}", rank_,
                own_sends.size(), own_receives.size());
  }
  for (std::size_t i = 0; i < own_sends.size(); ++i) {
    const std::size_t bytes = own_sends[i]->count * size_of(own_sends[i]->type);
    if (bytes == 0) continue;
    const bool ordered = follow_last(on);
    executor::check_cuda(
        cudaMemcpyAsync(own_receives[i]->output, own_sends[i]->input, bytes, cudaMemcpyDefault, on),
        "copying a message to this rank itself");
    if (ordered) mark_last(on);
  }
  for (const std::vector<PointToPointCall>& wave : waves) {
    MessageArgs args{};
    for (std::size_t p = 0; p < kNumProtocols; ++p) {
      args.links[p] = links_of(static_cast<Protocol>(p));
    }
    args.address_bytes = direct_ == Direct::kOff ? ~std::size_t{0} : kAddressBytes;
    args.check_tags = check_calls_;
    unsigned blocks = 0;
    unsigned threads = 0;
    for (const PointToPointCall& call : wave) {
      Message& message = args.messages[args.num_messages++];
      message.bytes = call.count * size_of(call.type);
      const tune::DeviceChoice choice = tuner_->choose_message(message.bytes);
      message.chunk_bytes = choice.chunk_bytes;
      message.peer = call.peer;
      message.first_block = static_cast<std::uint16_t>(blocks);
      message.channels = static_cast<std::uint16_t>(choice.channels);
      message.protocol = choice.protocol;
      message.sends = call.sends;
      message.data = call.sends ? static_cast<std::byte*>(const_cast<void*>(call.input))
                                : static_cast<std::byte*>(call.output);
      if (check_pointers_) {
        check_buffer(message.data, message.bytes, call.sends ? "sendbuf" : "recvbuf");
      }
      show(message);
      blocks += static_cast<unsigned>(choice.channels);
      threads = std::max(threads, executor::launch_threads(choice.protocol,
                                                           static_cast<unsigned>(choice.threads)));
    }
    start(executor::cuda_message_kernel(), blocks, threads, &args, 0, on);
  }
}

// ---- faults -----------------------------------------------------------------------------

void CudaGroup::abort() noexcept {
  if (control_ != nullptr) std::atomic_ref(control_->abort).store(1);
}

std::optional<Error> CudaGroup::stopped() const {
  using executor::StopReason;
  const std::uint32_t reason = std::atomic_ref(control_->stop.reason).load();
  if (reason == 0 || reason == static_cast<std::uint32_t>(StopReason::kAborted)) return {};
  const executor::StopRecord& stop = control_->stop;
  switch (static_cast<StopReason>(reason)) {
    case StopReason::kTimeout:
      return Error(Errc::kTimeout, "a kernel of rank {} waited longer than ROPEWALK_TIMEOUT",
                   rank_);
    case StopReason::kMismatch:
      return Error(Errc::kInvalidUsage, "{}",
                   executor::describe_difference(rank_, stop.own, executor::CallHistory(),
                                                 stop.peer, stop.theirs));
    case StopReason::kWrongSize:
      return Error(Errc::kInternal,
                   "rank {} has a chunk of {} bytes for or from rank {}, where {} is right", rank_,
                   stop.got, stop.peer, stop.expected);
    case StopReason::kNone:
    case StopReason::kAborted: break;
  }
  return {};
}

void CudaGroup::finish(bootstrap::Bootstrap& bootstrap) {
  const executor::CurrentDevice current(device_);
  wait_until_idle();
  // Before the others hear of it: who has left may free its memory.
  buffers_->close_all();
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
      log::warn("rank {} frees its window before rank {} has said that it is done", rank_, r);
      return;
    }
  }
}

// ---- making one -------------------------------------------------------------------------

std::unique_ptr<DeviceGroup> attach_device(bootstrap::Bootstrap& bootstrap, const Config& config,
                                           Runtime& runtime, const tune::GroupFacts& facts,
                                           int device) {
  if (facts.num_hosts > 1) {
    throw Error(Errc::kInvalidUsage, "the ranks' GPUs are on {} hosts; one is supported",
                facts.num_hosts);
  }
  return std::make_unique<CudaGroup>(bootstrap, config, runtime, device);
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
  executor::check_cuda(cudaGetDevice(&device), "asking for the current device");
  return device;
}

}  // namespace ropewalk::comm
