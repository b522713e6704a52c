#include "transport/window/sisci/acceptor.h"

#include <array>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "core/same_secret.h"

namespace ropewalk::transport::window::sisci {
namespace {

constexpr auto kGreetingTime = std::chrono::seconds(10);
constexpr std::size_t kMaxGuests = 128;
// More than libraries are known to carry.
constexpr std::size_t kMessageBytes = 256;

}  // namespace

SisciAcceptor::SisciAcceptor(Context& context, Memory& memory, const PathOptions& options,
                             WindowSizes sizes)
    : context_(context),
      memory_(memory),
      options_(options),
      sizes_(sizes),
      descriptor_(OpenDescriptor::open(context)) {
  const Library& library = *context.library;
  Status status = Status::kUnset;
  unsigned number = 0;
  library->CreateDataInterrupt(descriptor_->get(), &interrupt_, options.adapter, &number, nullptr,
                               nullptr, 0, &status);
  if (status != Status::kOk) {
    throw Error(Errc::kSystem, "sisci: adapter {}: SCICreateDataInterrupt: {}", options.adapter,
                library.words(status));
  }
  address_.adapter = options.adapter;
  address_.node = options.node;
  address_.interrupt = number;
  fill_random(address_.secret);
  handle_ = encode(address_);
}

SisciAcceptor::~SisciAcceptor() {
  context_.clean_up.add(
      {[interrupt = interrupt_, library = context_.library, descriptor = descriptor_] {
        Status status = Status::kUnset;
        (*library)->RemoveDataInterrupt(interrupt, 0, &status);
        return status != Status::kBusy;
      }});
}

void SisciAcceptor::take_greetings() {
  const Library& library = *context_.library;
  while (guests_.size() < kMaxGuests) {
    std::array<std::byte, kMessageBytes> message{};
    unsigned length = kMessageBytes;
    Status status = Status::kUnset;
    library->WaitForDataInterrupt(interrupt_, message.data(), &length, 0, 0, &status);
    if (status == Status::kTimeout) return;
    if (status != Status::kOk) {
      throw Error(Errc::kSystem, "sisci: SCIWaitForDataInterrupt: {}", library.words(status));
    }
    Greeting greeting;
    if (length == sizeof greeting) std::memcpy(&greeting, message.data(), sizeof greeting);
    // Any node may trigger an interrupt with anything.
    if (length != sizeof greeting || !is_greeting(greeting)) {
      log::warn("sisci: {} bytes that came to a listener on adapter {} are not a greeting", length,
                options_.adapter);
    } else if (!same_secret(greeting.secret, address_.secret)) {
      log::warn("sisci: node {} does not know the handle's secret", greeting.node);
      refuse(greeting);
    } else {
      guests_.push_back({greeting, std::chrono::steady_clock::now()});
    }
  }
}

// When a segment is disconnected again, its owner learns that there will be no answer.
void SisciAcceptor::refuse(const Greeting& greeting) {
  Status status = Status::kUnset;
  (void)RemoteRegion::connect(context_, descriptor_, options_.adapter, greeting.node,
                              greeting.segment, status);
}

std::unique_ptr<Path> SisciAcceptor::accept() {
  context_.clean_up.sweep();
  take_greetings();
  std::unique_ptr<Path> path;
  std::erase_if(guests_, [&](const Guest& guest) {
    if (path) return false;
    bool keep = false;
    path = let_in(guest, keep);
    return !keep;
  });
  return path;
}

std::unique_ptr<Path> SisciAcceptor::let_in(const Guest& guest, bool& keep) {
  try {
    std::shared_ptr<OpenDescriptor> descriptor = OpenDescriptor::open(context_);
    Status status = Status::kUnset;
    std::unique_ptr<PeerWindow> peer =
        PeerWindow::connect(context_, descriptor, options_.adapter, guest.greeting.node,
                            guest.greeting.segment, status);
    if (peer) {
      return std::make_unique<SisciPath>(context_, memory_, options_, std::move(descriptor),
                                         std::move(peer), guest.greeting, sizes_);
    }
    // Its segment existed before it greeted; without the segment it has ended.
    keep = may_pass(status) && status != Status::kNoSuchSegment &&
           std::chrono::steady_clock::now() - guest.since < kGreetingTime;
    if (!keep) {
      log::warn("sisci: adapter {}: node {} greeted, but its window cannot be connected: {}",
                options_.adapter, guest.greeting.node, context_.library->words(status));
    }
  } catch (const Error& error) {
    // That peer sees that its listener does not answer; other peers are not to suffer.
    log::warn("sisci: a connection could not be made: {}", error.what());
  }
  return nullptr;
}

}  // namespace ropewalk::transport::window::sisci
