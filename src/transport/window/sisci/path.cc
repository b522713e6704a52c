#include "transport/window/sisci/path.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "transport/checksum.h"
#include "transport/window/handle_of.h"

namespace ropewalk::transport::window::sisci {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<char, 4> kHandleMagic = {'R', 'W', 's', '1'};
constexpr std::uint32_t kGreetingMagic = 0x31677352;

// For an answer that comes at once, or never: a segment of the peer, a trial's transfer.
constexpr auto kPathPatience = std::chrono::seconds(10);
constexpr auto kListenerLook = std::chrono::milliseconds(20);
constexpr std::size_t kWindowPieceBytes = 64 << 10;

// In the answer and in the word of a trial: that it is there.
constexpr std::uint64_t kTrialTold = 0x747269656421;

// Old releases of NCCL carry 64 bytes, of which the network plugin wants some for itself.
static_assert(sizeof(HandleOf<ListenerAddress, kHandleMagic.size()>) <= 60);

std::uint32_t sum_of(Greeting greeting) {
  greeting.checksum = 0;
  return static_cast<std::uint32_t>(checksum(&greeting, sizeof greeting));
}

std::uint64_t random_word() {
  std::uint64_t word = 0;
  fill_random(std::as_writable_bytes(std::span(&word, 1)));
  return word | 1;
}

constexpr const char* kMemoryCause =
    "the IOMMU is off or broken there, or PCIe access control services turn the writes away";

}  // namespace

Handle encode(const ListenerAddress& address) { return encode_handle(kHandleMagic, address); }

std::optional<ListenerAddress> decode_listener_address(const Handle& handle) {
  return decode_handle<ListenerAddress>(kHandleMagic, handle);
}

Greeting make_greeting(unsigned node, unsigned segment, std::uint64_t nonce, const Secret& secret) {
  Greeting greeting;
  greeting.magic = kGreetingMagic;
  greeting.node = node;
  greeting.segment = segment;
  greeting.nonce = nonce;
  greeting.secret = secret;
  greeting.checksum = sum_of(greeting);
  return greeting;
}

bool is_greeting(const Greeting& greeting) {
  return greeting.magic == kGreetingMagic && greeting.checksum == sum_of(greeting);
}

SisciPath::SisciPath(Context& context, Memory& memory, const PathOptions& options,
                     const ListenerAddress& listener, WindowSizes sizes)
    : context_(context),
      memory_(memory),
      options_(options),
      descriptor_(OpenDescriptor::open(context)),
      peer_node_(listener.node),
      own_(std::make_unique<OwnWindow>(context, descriptor_, options.adapter, sizes.own)),
      state_(State::kCalling),
      deadline_(Clock::now() + kPathPatience),
      listener_(listener),
      nonce_(random_word()),
      window_bytes_(sizes.other),
      transfer_from_(options.pio_bytes != 0 ? options.pio_bytes : kUsualCrossover),
      gpu_side_(memory.cuda, memory.trials, *this, static_cast<int>(options.queues)) {
  capabilities_.queues = static_cast<int>(options.queues);
  capabilities_.piece_bytes = kWindowPieceBytes;
  capabilities_.why_no_pull = "only a sender copies";
  capabilities_.puts_may_tear = true;
  (void)step();
}

SisciPath::SisciPath(Context& context, Memory& memory, const PathOptions& options,
                     std::shared_ptr<OpenDescriptor> descriptor, std::unique_ptr<PeerWindow> peer,
                     const Greeting& greeting, WindowSizes sizes)
    : context_(context),
      memory_(memory),
      options_(options),
      descriptor_(std::move(descriptor)),
      peer_node_(greeting.node),
      own_(std::make_unique<OwnWindow>(context, descriptor_, options.adapter, sizes.own)),
      peer_(std::move(peer)),
      window_bytes_(sizes.other),
      transfer_from_(options.pio_bytes != 0 ? options.pio_bytes : kTimedSizes.front()),
      gpu_side_(memory.cuda, memory.trials, *this, static_cast<int>(options.queues)) {
  capabilities_.piece_bytes = kWindowPieceBytes;
  capabilities_.why_no_pull = "a sender writes, which is faster over a bridge";
  capabilities_.puts_may_tear = true;
  std::uint32_t trial_segment = 0;
  if (options_.verify) {
    // Whether the other end will time its copies is not known here.
    trial_ = std::make_unique<Trial>(memory_.regions, kTimedSizes.back());
    if (trial_->region() != nullptr) trial_segment = trial_->region()->id();
  } else {
    usable_ = kFromRegistered | kFromPlain;
  }
  // The answer: the nonce last, which makes it valid.
  peer_->put_word(kReplyOffset + 8, own_->first_id() | std::uint64_t{trial_segment} << 32);
  peer_->flush();
  peer_->put_word(kReplyOffset, greeting.nonce);
  peer_->flush();
}

SisciPath::~SisciPath() {
  copies_.clear();  // ends transfers, which use all that follows
  staged_copies_.clear();
  reached_.clear();
  trial_region_.reset();
  trial_.reset();
  host_trial_.reset();
  peer_.reset();
  own_.reset();
}

std::byte* SisciPath::other_window() const {
  std::byte* const whole = peer_ == nullptr ? nullptr : peer_->whole();
  return whole == nullptr ? nullptr : whole + kHeaderBytes;
}

std::string SisciPath::to_peer() const {
  return fmt::format("sisci: adapter {} to node {}", options_.adapter, peer_node_);
}

std::uint64_t SisciPath::own_word(std::size_t offset) const {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(own_->data() + offset))
      .load(std::memory_order_acquire);
}

// ---- meeting -------------------------------------------------------------------------------

bool SisciPath::ready() {
  while (state_ != State::kReady) {
    if (!step()) return false;
  }
  return true;
}

// @return whether the next state was reached
bool SisciPath::step() {
  switch (state_) {
    case State::kCalling:
      if (!call()) return false;
      state_ = State::kAwaitingAnswer;
      return true;
    case State::kAwaitingAnswer:
      if (!answered()) return false;
      state_ = State::kJoining;
      deadline_ = Clock::now() + kPathPatience;
      return true;
    case State::kJoining:
      if (!join()) return false;
      state_ = State::kTryingWindow;
      return true;
    case State::kTryingWindow:
      if (!try_window()) return false;
      state_ = State::kTryingMemory;
      return true;
    case State::kTryingMemory:
      if (!try_memory()) return false;
      state_ = State::kReady;
      return true;
    case State::kReady: return true;
  }
  return true;
}

void SisciPath::check_deadline(Status status, const char* what) const {
  const bool final_now = !may_pass(status) && !out_of_space(status);
  if (!final_now && Clock::now() < deadline_) return;
  const bool link = status == Status::kNoLinkAccess || status == Status::kNoRemoteLinkAccess;
  throw Error(Errc::kPeerLost, "{}: {}: {}{}", to_peer(), what, context_.library->words(status),
              link ? ": the link is down, look at cable and switch" : "");
}

bool SisciPath::call() {
  const Library& library = *context_.library;
  RemoteDataInterrupt interrupt = nullptr;
  Status status = Status::kUnset;
  library->ConnectDataInterrupt(descriptor_->get(), &interrupt, listener_.node, options_.adapter,
                                listener_.interrupt, library.flags().infinite_timeout, 0, &status);
  // The handle exists, so the interrupt existed: its listener has closed.
  if (status == Status::kNoSuchSegment) {
    throw Error(Errc::kPeerLost, "{}: its listener has closed", to_peer());
  }
  if (status != Status::kOk) {
    check_deadline(status, "SCIConnectDataInterrupt");
    return false;
  }
  Greeting greeting = make_greeting(options_.node, own_->first_id(), nonce_, listener_.secret);
  status = Status::kUnset;
  library->TriggerDataInterrupt(interrupt, &greeting, sizeof greeting, 0, &status);
  Status ignored = Status::kUnset;
  library->DisconnectDataInterrupt(interrupt, 0, &ignored);
  if (status == Status::kOk) return true;
  // The listener has not fetched earlier ones, which may take long.
  if (out_of_space(status)) {
    deadline_ = Clock::now() + kPathPatience;
  } else {
    check_deadline(status, "SCITriggerDataInterrupt");
  }
  return false;
}

bool SisciPath::answered() {
  const bool left = own_->left();  // before the answer is read, which may have arrived first
  if (own_word(kReplyOffset) != nonce_) {
    if (left) {
      throw Error(Errc::kPeerLost,
                  "{}: the accepting end refused or could not connect back; its log says why",
                  to_peer());
    }
    look_at_listener();
    return false;
  }
  const std::uint64_t answer = own_word(kReplyOffset + 8);
  answer_segment_ = static_cast<std::uint32_t>(answer);
  answer_trial_ = static_cast<std::uint32_t>(answer >> 32);
  return true;
}

void SisciPath::look_at_listener() {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kListenerLook;
  context_.clean_up.sweep();
  const Library& library = *context_.library;
  RemoteDataInterrupt interrupt = nullptr;
  Status status = Status::kUnset;
  library->ConnectDataInterrupt(descriptor_->get(), &interrupt, listener_.node, options_.adapter,
                                listener_.interrupt, library.flags().infinite_timeout, 0, &status);
  if (status == Status::kOk) {
    deadline_ = now + kPathPatience;
    library->DisconnectDataInterrupt(interrupt, 0, &status);
    return;
  }
  if (own_word(kReplyOffset) == nonce_) return;  // it answered, and then went
  if (status == Status::kNoSuchSegment) {
    throw Error(Errc::kPeerLost, "{}: its listener has closed", to_peer());
  }
  check_deadline(status, "SCIConnectDataInterrupt");
}

bool SisciPath::join() {
  Status status = Status::kUnset;
  peer_ = PeerWindow::connect(context_, descriptor_, options_.adapter, peer_node_, answer_segment_,
                              status);
  if (!peer_) {
    // It was available before it was named, so it has been removed.
    if (status == Status::kNoSuchSegment) {
      throw Error(Errc::kPeerLost, "{}: the accepting end has closed", to_peer());
    }
    check_deadline(status, "connecting to its window");
    return false;
  }
  make_queues();
  return true;
}

void SisciPath::make_queues() {
  Status status = Status::kOk;
  for (std::size_t i = 0; i < options_.queues; ++i) {
    Copy copy;
    copy.queue = Queue::create(context_, descriptor_, options_.adapter, status);
    if (!copy.queue) break;
    copies_.push_back(std::move(copy));
  }
  if (copies_.size() < options_.queues) {
    context_.warn_once(fmt::format("sisci: adapter {}: a connection has {} of {} DMA queues: {}{}",
                                   options_.adapter, copies_.size(), options_.queues,
                                   context_.library->words(status),
                                   copies_.empty() ? "; the CPU copies instead" : ""));
  }
  if (copies_.empty()) {
    use_dma_ = false;
    copies_.emplace_back();
  }
  capabilities_.queues = static_cast<int>(copies_.size());
}

// ---- trials --------------------------------------------------------------------------------

bool SisciPath::try_window() {
  if (!options_.verify || !use_dma_) return true;
  Copy& copy = copies_.front();
  const auto give_up = [&](const std::string& why) {
    use_dma_ = false;
    copy.posted = false;
    context_.warn_once(
        fmt::format("{}: DMA into its window {}; the CPU copies instead", to_peer(), why));
    return true;
  };
  if (!copy.posted) {
    trial_seed_ = random_word();
    trial_ = std::make_unique<Trial>(memory_.regions, times_copies() ? kTimedSizes.back() : 0);
    const std::span<std::byte> page = trial_->page(kFromPlain).first(kScratchBytes);
    fill_pattern(page, trial_seed_, kFromPlain);
    const PeerWindow::Target target = peer_->target_at(kScratchOffset);
    const Status status =
        copy.queue->start(page.data(), target.segment, target.offset, page.size());
    if (status != Status::kOk) return give_up("cannot start: " + context_.library->words(status));
    copy.posted = true;
    deadline_ = Clock::now() + kPathPatience;
  }
  const Queue::Progress progress = copy.queue->progress();
  if (progress == Queue::Progress::kRunning) {
    if (Clock::now() < deadline_) return false;
    return give_up("does not end");
  }
  if (progress == Queue::Progress::kFailed) return give_up("failed: " + copy.queue->why());
  copy.posted = false;
  std::vector<std::byte> seen(kScratchBytes);
  peer_->get(kScratchOffset, seen.data(), seen.size());
  if (!is_pattern(seen, trial_seed_, kFromPlain)) {
    if (std::optional<std::string> reason = peer_->gone()) {
      throw Error(Errc::kPeerLost, "{}: {}", to_peer(), *reason);
    }
    return give_up("reported success but moved no data");
  }
  return true;
}

// Writes from registered, then from plain memory. The other end is told which of them ran, and
// compares what arrived.
bool SisciPath::try_memory() {
  if (!options_.verify || !use_dma_) {
    trial_.reset();
    if (options_.verify) tell_trial();
    return true;
  }
  if (trial_source_ == 0) {
    if (answer_trial_ != 0) {
      Status status = Status::kUnset;
      trial_region_ = RemoteRegion::connect(context_, descriptor_, options_.adapter, peer_node_,
                                            answer_trial_, status);
      if (!trial_region_) {
        log::info(log::kNet, "{}: its registered memory cannot be connected: {}", to_peer(),
                  context_.library->words(status));
      }
    }
    trial_source_ = kFromRegistered;
    if (!start_memory_trial(trial_source_)) trial_source_ = kFromPlain << 1;
  }
  while (trial_source_ <= kFromPlain) {
    Copy& copy = copies_.front();
    if (copy.posted) {
      const Queue::Progress progress = copy.queue->progress();
      if (progress == Queue::Progress::kRunning && Clock::now() < deadline_) return false;
      copy.posted = false;
      if (progress == Queue::Progress::kDone) {
        tried_ |= trial_source_;
      } else {
        context_.warn_once(fmt::format(
            "{}: DMA into its registered memory {}; messages go through its window", to_peer(),
            progress == Queue::Progress::kRunning ? "does not end"
                                                  : "failed: " + copy.queue->why()));
        Status status = Status::kUnset;
        copy.queue = Queue::create(context_, descriptor_, options_.adapter, status);
        if (!copy.queue) use_dma_ = false;
        break;
      }
    }
    trial_source_ <<= 1;
    if (trial_source_ <= kFromPlain) (void)start_memory_trial(trial_source_);
  }
  time_copies();
  trial_region_.reset();
  trial_.reset();
  tell_trial();
  return true;
}

// @return whether the region of the other end is there at all
bool SisciPath::start_memory_trial(unsigned source) {
  if (!trial_region_) return false;
  if (source == kFromRegistered && trial_->region() == nullptr)
    return true;  // the other source is left
  const std::span<std::byte> page = trial_->page(source);
  fill_pattern(page, trial_seed_, source);
  const Status status = start_from_trial(source, page);
  if (status != Status::kOk) {
    context_.warn_once(
        fmt::format("{}: DMA into its registered memory cannot start: {}; messages "
                    "go through its window",
                    to_peer(), context_.library->words(status)));
    return true;
  }
  copies_.front().posted = true;
  deadline_ = Clock::now() + kPathPatience;
  return true;
}

// Part of this end's trial, to the same offset of the other's.
Status SisciPath::start_from_trial(unsigned source, std::span<const std::byte> part) {
  Queue& queue = *copies_.front().queue;
  const std::size_t offset = trial_->offset(part);
  return source == kFromRegistered
             ? queue.start(trial_->region()->segment(), offset, trial_region_->get(), offset,
                           part.size())
             : queue.start(part.data(), trial_region_->get(), offset, part.size());
}

void SisciPath::tell_trial() {
  peer_->put_word(kTrialOffset + 8, trial_seed_);
  peer_->put_word(kTrialOffset + 16, tried_);
  peer_->flush();
  peer_->put_word(kTrialOffset, kTrialTold);
  peer_->flush();
}

unsigned SisciPath::judge_trial() {
  if (usable_) return *usable_;
  if (own_word(kTrialOffset) != kTrialTold) return 0;
  const std::uint64_t seed = own_word(kTrialOffset + 8);
  const auto tried = static_cast<unsigned>(own_word(kTrialOffset + 16));
  unsigned usable = 0;
  bool lost = false;
  for (const unsigned source : {kFromRegistered, kFromPlain}) {
    if ((tried & source) == 0 || trial_->region() == nullptr) continue;
    if (is_pattern(trial_->page(source), seed, source)) {
      usable |= source;
    } else {
      lost = true;
    }
  }
  if (lost && usable == 0) {
    context_.warn_once(fmt::format(
        "{}: DMA into registered memory of this end reports success but moves no data: {}; "
        "messages go through windows",
        to_peer(), kMemoryCause));
  } else if (lost) {
    context_.warn_once(fmt::format(
        "{}: DMA out of registered memory of the other end reports success but moves no data: {}; "
        "it is pinned for each transfer instead",
        to_peer(), kMemoryCause));
  }
  log::info(log::kNet, "{}: registered memory is {}written directly{}", to_peer(),
            usable == 0 ? "not " : "",
            usable == kFromPlain ? " from memory that is pinned each time" : "");
  trial_.reset();
  usable_ = usable;
  return usable;
}

// ---- words and copies ----------------------------------------------------------------------

void SisciPath::put(std::size_t offset, const void* data, std::size_t bytes) {
  peer_->put(kHeaderBytes + offset, data, bytes);
}

// The first flush orders, the second keeps the word from waiting in the CPU.
void SisciPath::put_word(std::size_t offset, std::uint64_t value) {
  peer_->flush();
  peer_->put_word(kHeaderBytes + offset, value);
  peer_->flush();
}

std::uint64_t SisciPath::read_word(std::size_t offset) const {
  return own_word(kHeaderBytes + offset);
}

// A load from the other end follows the stores in flight, so they have arrived when it is done.
void SisciPath::order_puts_before_reads() {
  std::uint64_t word = 0;
  peer_->get(kHeaderBytes, &word, sizeof word);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

std::uint64_t SisciPath::address_of(const void* data, Registration* /*registration*/) const {
  return reinterpret_cast<std::uint64_t>(data);
}

bool SisciPath::aligned(std::size_t offset, const void* source, std::size_t bytes) const {
  return ((offset | reinterpret_cast<std::uintptr_t>(source) | bytes) % options_.alignment) == 0;
}

// Queues for staged memory are made when they are needed.
SisciPath::Copy& SisciPath::copy_of(int queue) {
  const auto number = static_cast<std::size_t>(queue);
  if (number < options_.queues) return copies_[number];
  while (staged_copies_.size() <= number - options_.queues) {
    Copy made;
    Status status = Status::kUnset;
    if (use_dma_) made.queue = Queue::create(context_, descriptor_, options_.adapter, status);
    staged_copies_.push_back(std::move(made));
  }
  return staged_copies_[number - options_.queues];
}

void SisciPath::start_write(int queue, std::size_t offset, const void* source, std::size_t bytes) {
  Copy& copy = copy_of(queue);
  copy.direct = false;
  const PeerWindow::Target target = peer_->target_at(kHeaderBytes + offset);
  if (use_dma_ && copy.queue && bytes >= transfer_from_ && bytes <= target.room &&
      aligned(offset, source, bytes)) {
    const Status status = copy.queue->start(source, target.segment, target.offset, bytes);
    if (status == Status::kOk) {
      copy.posted = true;
      copy.offset = offset;
      copy.source = source;
      copy.bytes = bytes;
      return;
    }
    context_.warn_once(fmt::format("{}: DMA into its window cannot start: {}; the CPU copies",
                                   to_peer(), context_.library->words(status)));
  }
  put(offset, source, bytes);
}

void SisciPath::start_pull(int /*queue*/, void* /*destination*/, std::uint64_t /*source*/,
                           std::size_t /*bytes*/) {
  throw Error(Errc::kInternal, "{}: bridges do not support pulling messages", to_peer());
}

bool SisciPath::copy_done(int queue) {
  Copy& copy = copy_of(queue);
  if (!copy.posted) return true;
  const Queue::Progress progress = copy.queue->progress();
  if (progress == Queue::Progress::kRunning) return false;
  copy.posted = false;
  if (progress == Queue::Progress::kDone) return !start_read_back(queue, copy);
  copy.read_back.reset();
  const std::string why = copy.queue->why();
  // What failed is not started again.
  Status status = Status::kUnset;
  copy.queue = Queue::create(context_, descriptor_, options_.adapter, status);
  if (std::optional<std::string> reason = peer_lost()) {
    throw Error(Errc::kPeerLost, "{}", *reason);
  }
  if (copy.direct) {
    throw Error(Errc::kPeerLost, "{}: DMA into its registered memory: {}", to_peer(), why);
  }
  context_.warn_once(
      fmt::format("{}: DMA into its window: {}; the CPU copies again", to_peer(), why));
  put(copy.offset, copy.source, copy.bytes);
  return true;
}

// ---- the end -------------------------------------------------------------------------------

std::optional<std::string> SisciPath::peer_lost() {
  if (!peer_) return std::nullopt;
  if (own_word(kGoodbyeOffset) != 0) return "it closed the connection";
  if (std::optional<std::string> reason = peer_->gone()) return reason;
  return peer_->stores_lost();
}

void SisciPath::disconnect() noexcept {
  if (!peer_ || std::exchange(disconnected_, true)) return;
  try {
    peer_->flush();
    peer_->put_word(kGoodbyeOffset, 1);
    peer_->flush();
  } catch (const std::exception& error) {
    log::info(log::kNet, "{}", error.what());
  }
}

}  // namespace ropewalk::transport::window::sisci
