#include "transport/auto/ends.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/log.h"
#include "transport/simple_requests.h"

namespace ropewalk::transport::choosing {
namespace {

using Clock = std::chrono::steady_clock;

// A sender that sees its path refused connects again at once; it may have to be scheduled first.
constexpr auto kReplacementTime = std::chrono::seconds(10);

constexpr std::uint32_t kGreetingTag = 0x52576175;
constexpr std::array<std::byte, 7> kGreeting = {std::byte{'R'}, std::byte{'W'}, std::byte{'a'},
                                                std::byte{'u'}, std::byte{'t'}, std::byte{'o'},
                                                std::byte{'1'}};

// A mistake of the caller would be one over any path.
bool is_of_path(const Error& error) {
  return error.code() != Errc::kInvalidArgument && error.code() != Errc::kInvalidUsage;
}

template <typename Connection>
std::unique_ptr<Registration> register_with(void* connection, void* data, std::size_t bytes,
                                            MemoryKind kind) {
  return static_cast<Connection*>(connection)->register_memory(data, bytes, kind);
}

}  // namespace

// ---- registrations -------------------------------------------------------------------------

class Registrations::Entry final : public Registration {
 public:
  Entry(Registrations& owner, void* at, std::size_t size, MemoryKind of_kind)
      : data(at), bytes(size), kind(of_kind), owner_(owner) {}
  ~Entry() override { owner_.forget(this); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  void* const data;
  const std::size_t bytes;
  const MemoryKind kind;
  std::unique_ptr<Registration> inner;

 private:
  Registrations& owner_;
};

std::unique_ptr<Registration> Registrations::add(void* data, std::size_t bytes, MemoryKind kind) {
  auto entry = std::make_unique<Entry>(*this, data, bytes, kind);
  // Without a path its turn comes in move_to(). What can never be right is refused now.
  if (data == nullptr && bytes > 0) {
    throw Error(Errc::kInvalidArgument, "registration of {} bytes at a null pointer", bytes);
  }
  // Not under the lock if it throws: the entry's destructor takes it too.
  const Lock lock(mutex_);
  register_one(*entry);
  entries_.push_back(entry.get());
  return entry;
}

void Registrations::register_one(Entry& entry) {
  if (connection_ == nullptr) return;
  try {
    entry.inner = how_(connection_, entry.data, entry.bytes, entry.kind);
  } catch (const Error& error) {
    if (entry.kind == MemoryKind::kHost) throw;
    throw Error(error.code(),
                "{}: {}. The path that this connection can take does not take GPU memory; with "
                "NCCL_NET_GDR_LEVEL=LOC NCCL gives it host memory",
                name_, error.what());
  }
}

void Registrations::move_to(void* connection, Register how, std::string_view name) {
  const Lock lock(mutex_);
  connection_ = connection;
  how_ = how;
  name_ = name;
  for (Entry* entry : entries_) {
    entry->inner.reset();
    register_one(*entry);
  }
}

Registration* Registrations::of_path(Registration* registration) noexcept {
  return registration == nullptr ? nullptr : static_cast<Entry*>(registration)->inner.get();
}

void Registrations::forget(Entry* entry) {
  const Lock lock(mutex_);
  std::erase(entries_, entry);
}

// ---- acceptors --------------------------------------------------------------------------

Acceptors::Acceptors(const std::vector<Provider>& providers, int device) {
  const Lock lock(mutex_);
  std::vector<Offer> offers;
  std::string failures;
  for (const Provider& provider : providers) {
    try {
      auto listener = provider.transport->listen(provider.device);
      offers.push_back({provider.kind, listener->handle()});
      acceptors_.push_back({provider.kind, std::move(listener)});
    } catch (const Error& error) {
      log::warn("auto: no listener over {}: {}", name(provider.kind), error.what());
      failures +=
          fmt::format("{}{}: {}", failures.empty() ? "" : "; ", name(provider.kind), error.what());
    }
  }
  if (acceptors_.empty()) {
    throw Error(Errc::kSystem, "auto: device {}: it cannot listen: {}", device, failures);
  }
  handle_ = encode(offers);
}

bool Acceptors::Arrival::read_greeting() {
  if (greeted) return true;
  if (!request) {
    if (!message) message = std::make_unique<std::array<std::byte, 8>>();
    const ReceiveBuffer buffer{message->data(), message->size(), kGreetingTag, nullptr};
    request = connection->receive({&buffer, 1});
  }
  if (!request || !request->test()) return false;
  request.reset();
  if (!std::equal(kGreeting.begin(), kGreeting.end(), message->begin())) {
    throw Error(Errc::kPeerLost, "the first message over tcp is invalid");
  }
  replaces = message->back() != std::byte{0};
  greeted = true;
  return true;
}

void Acceptors::poll() {
  std::erase_if(over_tcp_, [](Arrival& arrival) {
    try {
      (void)arrival.read_greeting();
      return false;
    } catch (const Error& error) {
      log::info(log::kNet, "auto: a connection over tcp ended early: {}", error.what());
      arrival.request.reset();
      return true;
    }
  });
}

std::optional<Acceptors::Arrival> Acceptors::take_new() {
  const Lock lock(mutex_);
  for (Acceptor& acceptor : acceptors_) {
    try {
      Arrival arrival;
      arrival.kind = acceptor.kind;
      arrival.connection = acceptor.listener->accept();
      if (!arrival.connection) continue;
      if (acceptor.kind != PathKind::kTcp) return arrival;
      over_tcp_.push_back(std::move(arrival));
    } catch (const Error& error) {
      // The peer sees it fail too, and comes to the next acceptor.
      log::warn("auto: a connection over {} could not be taken: {}", name(acceptor.kind),
                error.what());
    }
  }
  poll();
  // Senders may wait until this end has accepted. So it waits for their first messages only if a
  // connection may need one of them as a replacement.
  const auto replacements = std::count_if(over_tcp_.begin(), over_tcp_.end(),
                                          [](const Arrival& a) { return a.greeted && a.replaces; });
  const int undecided = undecided_;
  const auto found = std::find_if(over_tcp_.begin(), over_tcp_.end(), [&](const Arrival& arrival) {
    if (undecided == 0) return true;
    return arrival.greeted && (!arrival.replaces || replacements > undecided);
  });
  if (found == over_tcp_.end()) return std::nullopt;
  Arrival taken = std::move(*found);
  over_tcp_.erase(found);
  return taken;
}

std::optional<Acceptors::Arrival> Acceptors::take_replacement() {
  const Lock lock(mutex_);
  for (Acceptor& acceptor : acceptors_) {
    if (acceptor.kind != PathKind::kTcp) continue;
    Arrival arrival;
    arrival.kind = acceptor.kind;
    arrival.connection = acceptor.listener->accept();
    if (arrival.connection) over_tcp_.push_back(std::move(arrival));
  }
  poll();
  const auto found = std::find_if(over_tcp_.begin(), over_tcp_.end(), [](const Arrival& arrival) {
    return arrival.greeted && arrival.replaces;
  });
  if (found == over_tcp_.end()) return std::nullopt;
  Arrival taken = std::move(*found);
  over_tcp_.erase(found);
  return taken;
}

void Acceptors::count_undecided(int change) {
  const Lock lock(mutex_);
  undecided_ += change;
}

// ---- the sending end -----------------------------------------------------------------------

AutoSender::AutoSender(const std::vector<Provider>& providers, std::vector<Offer> offers)
    : providers_(providers), offers_(offers.begin(), offers.end()) {
  next_path();
}

AutoSender::~AutoSender() = default;

void AutoSender::next_path() {
  while (!offers_.empty()) {
    const Offer offer = offers_.front();
    offers_.pop_front();
    const auto provider =
        std::find_if(providers_.begin(), providers_.end(),
                     [&](const Provider& known) { return known.kind == offer.kind; });
    try {
      if (provider == providers_.end()) throw Error(Errc::kSystem, "not available at this end");
      // Only TCP stands in for another path: its first message says so.
      if (replaces_ && offer.kind != PathKind::kTcp) continue;
      kind_ = offer.kind;
      connector_ = provider->transport->connect(provider->device, offer.handle);
      connection_ = connector_->poll();
      if (connection_) {
        connector_.reset();
        registrations_.move_to(connection_.get(), register_with<SendConnection>, name(kind_));
      }
      return;
    } catch (const Error& error) {
      connector_.reset();
      connection_.reset();
      failures_ +=
          fmt::format("{}{}: {}", failures_.empty() ? "" : "; ", name(offer.kind), error.what());
      // On another host shared memory is refused as a matter of course.
      log::info(log::kNet, "auto: no connection over {}: {}", name(offer.kind), error.what());
    }
  }
  throw Error(Errc::kPeerLost, "no path to the listener: {}", failures_);
}

void AutoSender::lost_path(const Error& error) {
  if (!is_of_path(error) || offers_.empty()) throw error;
  log::warn("auto: {} is not used for this connection, another path is tried: {}", name(kind_),
            error.what());
  failures_ += fmt::format("{}{}: {}", failures_.empty() ? "" : "; ", name(kind_), error.what());
  replaces_ = replaces_ || kind_ != PathKind::kTcp;
  registrations_.move_to(nullptr, nullptr, {});
  greeting_.reset();
  connector_.reset();
  connection_.reset();
  next_path();
}

void AutoSender::greet() {
  if (!greeting_ && !greeted_) {
    std::copy(kGreeting.begin(), kGreeting.end(), message_.begin());
    message_.back() = std::byte{replaces_};
    greeting_ = connection_->send(message_.data(), message_.size(), kGreetingTag, nullptr);
    greeted_ = greeting_ != nullptr;
  }
  if (greeting_ && greeting_->test()) greeting_.reset();
}

void AutoSender::advance() {
  try {
    if (!connection_) {
      connection_ = connector_->poll();
      if (!connection_) return;
      connector_.reset();
      registrations_.move_to(connection_.get(), register_with<SendConnection>, name(kind_));
    }
    if (!connection_->ready()) return;
    if (kind_ == PathKind::kTcp) {
      greet();
      if (greeting_ || !greeted_) return;
    }
    decided_ = true;
    log::info(log::kNet, "auto: a connection sends over {}", name(kind_));
  } catch (const Error& error) {
    lost_path(error);
  }
}

bool AutoSender::joined() {
  if (!connection_) advance();
  return connection_ != nullptr;
}

bool AutoSender::ready() {
  if (!decided_) advance();
  return decided_;
}

std::unique_ptr<Registration> AutoSender::register_memory(void* data, std::size_t bytes,
                                                          MemoryKind kind) {
  return registrations_.add(data, bytes, kind);
}

std::unique_ptr<Request> AutoSender::send(const void* data, std::size_t bytes, std::uint32_t tag,
                                          Registration* registration) {
  if (!decided_) {
    check_buffer(data, bytes, ~std::size_t{0});
    if (!ready()) return nullptr;
  }
  return connection_->send(data, bytes, tag, Registrations::of_path(registration));
}

std::unique_ptr<Request> AutoSender::send_split(std::span<const std::byte> head, const void* data,
                                                std::size_t bytes, std::uint32_t tag) {
  if (!decided_) return SendConnection::send_split(head, data, bytes, tag);
  return connection_->send_split(head, data, bytes, tag);
}

// ---- the receiving end ---------------------------------------------------------------------

AutoReceiver::AutoReceiver(std::shared_ptr<Acceptors> acceptors, Acceptors::Arrival arrival,
                           std::chrono::nanoseconds peer_loss_time)
    : acceptors_(std::move(acceptors)), peer_loss_time_(peer_loss_time) {
  if (arrival.kind != PathKind::kTcp) {
    acceptors_->count_undecided(1);
  } else {
    acceptors_.reset();  // there is no replacement
  }
  take(std::move(arrival));
}

AutoReceiver::~AutoReceiver() {
  if (acceptors_) acceptors_->count_undecided(-1);
}

void AutoReceiver::take(Acceptors::Arrival arrival) {
  path_ = std::move(arrival);
  registrations_.move_to(path_.connection.get(), register_with<ReceiveConnection>,
                         name(path_.kind));
}

void AutoReceiver::lost_path(const Error& error) {
  if (!acceptors_ || !is_of_path(error)) throw error;
  log::warn("auto: {} is not used for this connection, waiting for another path: {}",
            name(path_.kind), error.what());
  failure_ = error;
  // A peer that has died does not connect again; one that only closed does so at once.
  give_up_at_ = Clock::now() + (error.code() == Errc::kPeerLost
                                    ? std::chrono::duration_cast<Clock::duration>(peer_loss_time_)
                                    : Clock::duration(kReplacementTime));
  registrations_.move_to(nullptr, nullptr, {});
  path_.connection.reset();
}

bool AutoReceiver::ready() {
  if (decided_) return true;
  if (!path_.connection) {
    std::optional<Acceptors::Arrival> arrival = acceptors_->take_replacement();
    if (!arrival) {
      if (Clock::now() > give_up_at_) throw Error(*failure_);
      return false;
    }
    acceptors_->count_undecided(-1);
    acceptors_.reset();
    take(std::move(*arrival));
  }
  try {
    decided_ = path_.kind == PathKind::kTcp ? path_.read_greeting() : path_.connection->ready();
  } catch (const Error& error) {
    lost_path(error);
  }
  if (!decided_) return false;
  if (acceptors_) acceptors_->count_undecided(-1);
  acceptors_.reset();
  log::info(log::kNet, "auto: a connection receives over {}", name(path_.kind));
  return true;
}

std::unique_ptr<Registration> AutoReceiver::register_memory(void* data, std::size_t bytes,
                                                            MemoryKind kind) {
  return registrations_.add(data, bytes, kind);
}

std::unique_ptr<Request> AutoReceiver::receive(std::span<const ReceiveBuffer> buffers) {
  // Bad arguments are refused whether a path is there or not.
  check_buffers(buffers, kMostGrouped, ~std::size_t{0});
  if (!ready()) return nullptr;
  std::array<ReceiveBuffer, kMostGrouped> mapped;
  std::copy(buffers.begin(), buffers.end(), mapped.begin());
  for (ReceiveBuffer& buffer : std::span(mapped).first(buffers.size())) {
    buffer.registration = Registrations::of_path(buffer.registration);
  }
  return path_.connection->receive(std::span(mapped).first(buffers.size()));
}

std::unique_ptr<Request> AutoReceiver::flush(std::span<const ReceiveBuffer> buffers) {
  if (!ready()) return std::make_unique<FinishedRequest>(std::vector<std::size_t>(buffers.size()));
  std::vector<ReceiveBuffer> mapped(buffers.begin(), buffers.end());
  for (ReceiveBuffer& buffer : mapped) {
    buffer.registration = Registrations::of_path(buffer.registration);
  }
  return path_.connection->flush(mapped);
}

}  // namespace ropewalk::transport::choosing
