#include "transport/messaging/ofi/endpoint.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "transport/messaging/ofi/abi.h"
#include "transport/messaging/verification.h"

namespace ropewalk::transport::ofi {
namespace {

constexpr std::size_t kBufferBytes = kHeaderBytes + kMostJoinedBytes;
constexpr std::size_t kReceiveBuffers = 128;
constexpr std::size_t kSendBlock = 64;
constexpr std::size_t kMaxSendBuffers = 1024;
// The queue of completions: one for each operation that can be under way.
constexpr std::size_t kQueueEntries = 8192;
constexpr std::size_t kReadAtOnce = 16;
constexpr int kReadRounds = 8;
// Buffers whose small messages have been taken are posted again by the next progress, so that what
// came is answered first; but never are so many missing.
constexpr std::size_t kMostUnposted = 16;
static_assert(2 * kMostUnposted <= kReceiveBuffers);
// Names that an endpoint tries before "busy" is an error.
constexpr int kEndpointNames = 16;

// Small messages have one tag; large tagged messages have numbers that fit into what providers with
// short tags have (48 bits).
constexpr std::uint64_t kSmallTag = 0;
constexpr std::uint64_t kLargeTag = std::uint64_t{1} << 40;

// The endpoints of this process by their ids.
struct Known {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<Endpoint>> endpoints;
};
Known& known() {
  static Known all;
  return all;
}

}  // namespace

std::shared_ptr<Endpoint> Endpoint::make(std::shared_ptr<const Library> library,
                                         const Device& device, Gpus gpus) {
  auto made = std::make_shared<Endpoint>(std::move(library), device, std::move(gpus));
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.endpoints, [](const auto& entry) { return entry.second.expired(); });
  all.endpoints.emplace(made->id_, made);
  return made;
}

std::shared_ptr<Endpoint> Endpoint::of_this_process(std::uint64_t id) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const auto found = all.endpoints.find(id);
  return found == all.endpoints.end() ? nullptr : found->second.lock();
}

std::shared_ptr<Endpoint> Endpoint::of_whole_process(std::shared_ptr<const Library> library,
                                                     const Device& device) {
  // A child has its parent's, and must not use it.
  struct Shared {
    std::string device;
    pid_t process;
    std::weak_ptr<Endpoint> endpoint;
  };
  static std::mutex mutex;  // before an endpoint's
  static std::vector<Shared> all;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const Shared& each) { return each.endpoint.expired(); });
  const std::string key = fmt::format("{} {}", device.provider, device.name);
  for (const Shared& each : all) {
    if (each.device != key || each.process != getpid()) continue;
    std::shared_ptr<Endpoint> found = each.endpoint.lock();
    if (found == nullptr) continue;
    const Lock state(found->mutex);
    if (!found->retired()) return found;
  }
  std::shared_ptr<Endpoint> made = make(std::move(library), device, {});
  all.push_back({key, getpid(), made});
  return made;
}

// A small message of the endpoint's own.
struct Endpoint::Buffer {
  Operation operation;  // first
  Endpoint* endpoint = nullptr;
  Operation* told = nullptr;  // of a send: who waits for its end
  std::byte* data = nullptr;
  void* descriptor = nullptr;
  std::uint64_t address = 0;  // for this endpoint's own reads of it
  std::uint64_t key = 0;
};

struct Endpoint::Block {
  std::unique_ptr<std::byte[]> memory;
  Region region;
  std::vector<Buffer> buffers;
};

Endpoint::Endpoint(std::shared_ptr<const Library> library, const Device& device, Gpus gpus)
    : library_(std::move(library)),
      device_(device),
      gpus_(std::move(gpus)),
      scratch_(kBufferBytes) {
  if (!device_.gpu_memory) gpus_.cuda.reset();
  fill_random(std::as_writable_bytes(std::span(&id_, 1)));
  fill_random(std::as_writable_bytes(std::span(&next_ticket_, 1)));
  writes_tell_ = device_.writes_tell;
  try {
    open();
    const Lock lock(mutex);
    if (takes_gpu_memory()) self_ = peer(address_);
    make_block(kReceiveBuffers, true);
    for (Buffer& buffer : blocks_.front()->buffers) post(buffer);
  } catch (...) {
    close_all();
    throw;
  }
  log::info(log::kNet, "ofi: an endpoint of {} on {}, large messages by {}", device_.provider,
            device_.name, ofi::name(device_.large));
}

Endpoint::~Endpoint() { close_all(); }

// Providers with FI_MR_ENDPOINT refuse to close an endpoint to which regions are bound (cxi:
// FI_EBUSY).
void Endpoint::close_endpoint() noexcept {
  for (fid_mr* const region : std::exchange(bound_, {})) fi_close(&region->fid);
  fid_ep* const endpoint = endpoint_.release();
  if (endpoint == nullptr) return;
  if (const int error = fi_close(&endpoint->fid); error != 0) {
    log::warn("ofi: fi_close of an endpoint of {} on {}: {}", device_.provider, device_.name,
              library_->words(error));
  }
  file_ = {};
}

void Endpoint::close_all() noexcept {
  close_endpoint();
  blocks_.clear();
  addresses_.reset();
  queue_.reset();
  domain_.reset();
  fabric_.reset();
}

void Endpoint::open() {
  const auto check = [this](int error, const char* call) {
    if (error == 0) return;
    throw Error(Errc::kSystem, "{} (provider {}, {}): {}", call, device_.provider, device_.name,
                library_->words(error));
  };
  // The calls want to write to it.
  const Library::Info info = library_->copy(*device_.info);
  const auto mode = static_cast<std::uint64_t>(info->domain_attr->mr_mode);
  mr_local_ = (mode & FI_MR_LOCAL) != 0;
  virtual_addresses_ = (mode & FI_MR_VIRT_ADDR) != 0;
  chosen_keys_ = (mode & FI_MR_PROV_KEY) == 0;
  bound_regions_ = (mode & FI_MR_ENDPOINT) != 0;
  descriptors_ = mr_local_ || takes_gpu_memory();
  max_bytes_ = info->ep_attr->max_msg_size;
  inject_bytes_ = std::min(info->tx_attr->inject_size, kBufferBytes);
  const std::size_t key_bytes = info->domain_attr->mr_key_size;
  key_limit_ = key_bytes == 0 || key_bytes >= 8 ? 0 : std::uint64_t{1} << (8 * key_bytes);

  fid_fabric* fabric = nullptr;
  check(library_->fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric");
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  check(fi_domain(fabric, info.get(), &domain, nullptr), "fi_domain");
  domain_.reset(domain);
  fi_cq_attr queue_attributes{};
  queue_attributes.size = kQueueEntries;
  queue_attributes.format = FI_CQ_FORMAT_TAGGED;
  queue_attributes.wait_obj = FI_WAIT_NONE;
  fid_cq* queue = nullptr;
  check(fi_cq_open(domain, &queue_attributes, &queue, nullptr), "fi_cq_open");
  queue_.reset(queue);
  fi_av_attr address_attributes{};
  address_attributes.type =
      info->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info->domain_attr->av_type;
  fid_av* addresses = nullptr;
  check(fi_av_open(domain, &address_attributes, &addresses, nullptr), "fi_av_open");
  addresses_.reset(addresses);
  const bool makes_files = device_.provider == "shm";
  if (makes_files) remove_abandoned_files();
  // Provider shm names an endpoint by process id and a counter that two threads may read at once,
  // and another container may have the same process id. FI_EBUSY: the name is in use, try the next.
  int enabled = 0;
  for (int attempt = 0; attempt < kEndpointNames; ++attempt) {
    endpoint_.reset();
    fid_ep* endpoint = nullptr;
    check(fi_endpoint(domain, info.get(), &endpoint, nullptr), "fi_endpoint");
    endpoint_.reset(endpoint);
    check(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind of the address vector");
    check(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV),
          "fi_ep_bind of the completion queue");
    if (takes_gpu_memory()) forbid_cuda(endpoint);
    enabled = fi_enable(endpoint);
    if (enabled != -FI_EBUSY) break;
  }
  check(enabled, "fi_enable");
  fid_ep* endpoint = endpoint_.get();
  std::size_t bytes = 0;
  int asked = fi_getname(&endpoint->fid, nullptr, &bytes);
  if (asked != -FI_ETOOSMALL && asked != 0) check(asked, "fi_getname");
  address_.resize(bytes);
  check(fi_getname(&endpoint->fid, address_.data(), &bytes), "fi_getname");
  if (makes_files) file_ = SharedFile(address_);
}

fi_addr_t Endpoint::peer(std::span<const std::byte> address) {
  std::string key(reinterpret_cast<const char*>(address.data()), address.size());
  const auto known = peers_.find(key);
  if (known != peers_.end()) return known->second;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const int inserted = fi_av_insert(addresses_.get(), key.data(), 1, &peer, 0, nullptr);
  if (inserted != 1 || peer == FI_ADDR_NOTAVAIL) {
    throw Error(Errc::kSystem, "fi_av_insert (provider {}, {}): {}", device_.provider, device_.name,
                inserted < 0 ? library_->words(inserted) : "the peer's address is not usable here");
  }
  peers_.emplace(std::move(key), peer);
  return peer;
}

std::uint32_t Endpoint::add(Member& member) {
  members_.emplace(next_number_, &member);
  return next_number_++;
}

void Endpoint::remove(std::uint32_t number) {
  const auto member = members_.find(number);
  if (member == members_.end()) return;
  std::erase_if(tickets_, [&](const auto& entry) { return entry.second == member->second; });
  members_.erase(member);
}

std::uint32_t Endpoint::issue_tickets(Member& member, std::size_t count) {
  for (std::uint32_t free = 0; free < count;) {
    const std::uint32_t ticket = next_ticket_ + free;
    if (ticket != 0 && !tickets_.contains(ticket)) {
      ++free;
    } else {
      next_ticket_ = ticket + 1;
      free = 0;
    }
  }
  const std::uint32_t first = next_ticket_;
  for (std::size_t i = 0; i < count; ++i) tickets_.emplace(next_ticket_++, &member);
  return first;
}

int Endpoint::try_region(const std::function<int(std::uint64_t, fid_mr**)>& call, Region& made) {
  fid_mr* region = nullptr;
  int error = 0;
  // Keys of our own may be taken still, where they are few and began again.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const std::uint64_t key = chosen_keys_ ? next_key_++ : 0;
    if (key_limit_ != 0 && next_key_ >= key_limit_) next_key_ = 1;
    error = call(key, &region);
    if (error != -FI_ENOKEY) break;
  }
  if (error != 0) return error;
  made.mr = {region, CloseRegion{}};
  if (bound_regions_) {
    error = fi_mr_bind(region, &endpoint_->fid, 0);
    if (error == 0) {
      bound_.insert(made.mr.release());
      made.mr = {region, CloseRegion{&bound_}};
      error = fi_mr_enable(region);
    }
    if (error != 0) {
      throw Error(Errc::kSystem, "fi_mr_bind (provider {}, {}): {}", device_.provider, device_.name,
                  library_->words(error));
    }
  }
  // Not known before it is enabled.
  made.descriptor = fi_mr_desc(region);
  made.key = fi_mr_key(region);
  return 0;
}

Region Endpoint::make_region(void* data, std::size_t bytes, std::uint64_t access) {
  Region made;
  const int error = try_region(
      [&](std::uint64_t key, fid_mr** region) {
        return fi_mr_reg(domain_.get(), data, std::max<std::size_t>(bytes, 1), access, 0, key, 0,
                         region, nullptr);
      },
      made);
  if (error != 0) {
    throw Error(Errc::kSystem,
                "fi_mr_reg of {} bytes (provider {}, {}): {}; the limit of locked memory "
                "(ulimit -l) is {}",
                bytes, device_.provider, device_.name, library_->words(error),
                messaging::locked_memory_limit());
  }
  made.base = reinterpret_cast<std::uint64_t>(data);
  made.bytes = bytes;
  return made;
}

Region Endpoint::register_memory(void* data, std::size_t bytes, std::uint64_t access) {
  if (retired()) throw Error(Errc::kPeerLost, "{}", "ofi: the endpoint was closed");
  return make_region(data, bytes, access);
}

std::uint64_t Endpoint::remote_address(const Region& region, const void* data) const noexcept {
  const auto address = reinterpret_cast<std::uint64_t>(data);
  return virtual_addresses_ ? address : address - region.base;
}

void Endpoint::make_block(std::size_t count, bool receiving) {
  auto block = std::make_unique<Block>();
  block->memory = std::make_unique_for_overwrite<std::byte[]>(count * kBufferBytes);
  // From send buffers this endpoint's own reads fetch what goes to a GPU, and into them they flush.
  const bool read = takes_gpu_memory() && !receiving;
  if (mr_local_ || read) {
    const std::uint64_t access = receiving ? FI_RECV : FI_SEND | FI_WRITE;
    block->region = make_region(block->memory.get(), count * kBufferBytes,
                                access | (read ? FI_READ | FI_REMOTE_READ : 0));
  }
  block->buffers = std::vector<Buffer>(count);
  for (std::size_t i = 0; i < count; ++i) {
    Buffer& buffer = block->buffers[i];
    buffer.endpoint = this;
    buffer.data = block->memory.get() + i * kBufferBytes;
    buffer.descriptor = block->region.descriptor;
    if (read) {
      buffer.address =
          virtual_addresses_ ? reinterpret_cast<std::uint64_t>(buffer.data) : i * kBufferBytes;
      buffer.key = block->region.key;
    }
    buffer.operation.owner = &buffer;
    buffer.operation.finished = receiving ? buffer_received : buffer_sent;
    if (!receiving) free_.push_back(&buffer);
  }
  blocks_.push_back(std::move(block));
}

bool Endpoint::accepted(ssize_t result, const char* call) {
  if (result == 0) return true;
  if (result == -FI_EAGAIN) return false;
  throw Error(Errc::kPeerLost, "{}: {}", call, library_->words(result));
}

void Endpoint::post(Buffer& buffer) {
  try {
    if (receive_tagged(kSmallTag, buffer.data, kBufferBytes, buffer.descriptor, buffer.operation)) {
      return;
    }
    unposted_.push_back(&buffer);
  } catch (const Error& error) {
    retire(error.what());
  }
}

Endpoint::Buffer* Endpoint::take_buffer() {
  if (free_.empty()) {
    if (send_buffers_ >= kMaxSendBuffers) return nullptr;
    make_block(kSendBlock, false);
    send_buffers_ += kSendBlock;
  }
  return free_.back();
}

Endpoint::Sent Endpoint::send(fi_addr_t to, const Header& header, std::span<const iovec> payload,
                              Operation* operation) {
  if (retired()) return Sent::kNotNow;
  std::size_t bytes = kHeaderBytes;
  for (const iovec& piece : payload) bytes += piece.iov_len;
  const bool inject = bytes <= inject_bytes_;
  Buffer* const buffer = inject ? nullptr : take_buffer();
  if (!inject && buffer == nullptr) return Sent::kNotNow;
  std::byte* const data = inject ? scratch_.data() : buffer->data;
  std::memcpy(data, &header, kHeaderBytes);
  std::size_t at = kHeaderBytes;
  for (const iovec& piece : payload) {
    if (piece.iov_len > 0) std::memcpy(data + at, piece.iov_base, piece.iov_len);
    at += piece.iov_len;
  }
  if (inject) {
    const ssize_t result = fi_tinject(endpoint_.get(), data, bytes, to, kSmallTag);
    return accepted(result, "fi_tinject") ? Sent::kThrough : Sent::kNotNow;
  }
  const ssize_t result = fi_tsend(endpoint_.get(), data, bytes, buffer->descriptor, to, kSmallTag,
                                  &buffer->operation.context);
  if (!accepted(result, "fi_tsend")) return Sent::kNotNow;
  free_.pop_back();
  buffer->told = operation;
  buffer->operation.under_way = true;
  if (operation != nullptr) operation->under_way = true;
  return Sent::kUnderWay;
}

void Endpoint::forget(const Operation& operation) {
  for (const auto& block : blocks_) {
    for (Buffer& buffer : block->buffers) {
      if (buffer.told == &operation) buffer.told = nullptr;
    }
  }
}

bool Endpoint::write(const Remote& to, std::span<const iovec> from, std::span<void*> descriptors,
                     bool confirmed, std::uint64_t word, Operation& operation) {
  if (retired()) return false;
  std::size_t bytes = 0;
  for (const iovec& piece : from) bytes += piece.iov_len;
  const fi_rma_iov target{to.address, bytes, to.key};
  fi_msg_rma message{};
  message.msg_iov = from.data();
  message.desc = descriptors_ ? descriptors.data() : nullptr;
  message.iov_count = from.size();
  message.addr = to.peer;
  message.rma_iov = &target;
  message.rma_iov_count = 1;
  message.context = &operation.context;
  message.data = word;
  const ssize_t result = fi_writemsg(
      endpoint_.get(), &message,
      FI_COMPLETION | (confirmed ? FI_DELIVERY_COMPLETE : 0) | (word != 0 ? FI_REMOTE_CQ_DATA : 0));
  if (word != 0 && result != 0 && result != -FI_EAGAIN) {
    log::info(log::kNet, "ofi: {} on {} takes no data with a write: {}", device_.provider,
              device_.name, library_->words(result));
    writes_tell_ = false;
    return false;
  }
  if (!accepted(result, "fi_writemsg")) return false;
  operation.under_way = true;
  return true;
}

bool Endpoint::read(const Remote& from, void* local, std::size_t bytes, void* descriptor,
                    Operation& operation) {
  if (retired()) return false;
  const ssize_t result = fi_read(endpoint_.get(), local, bytes, descriptor, from.peer, from.address,
                                 from.key, &operation.context);
  if (!accepted(result, "fi_read")) return false;
  operation.under_way = true;
  return true;
}

bool Endpoint::copy_to_gpu(const Region& region, void* to, std::span<const std::byte> from,
                           Operation& told) {
  if (retired()) return false;
  Buffer* const buffer = take_buffer();
  if (buffer == nullptr) return false;
  std::memcpy(buffer->data, from.data(), from.size());
  if (!read({self_, buffer->address, buffer->key}, to, from.size(), region.descriptor,
            buffer->operation)) {
    return false;
  }
  free_.pop_back();
  buffer->told = &told;
  told.under_way = true;
  return true;
}

bool Endpoint::flush_gpu(const Region& region, const void* from, std::size_t bytes,
                         Operation& told) {
  constexpr std::size_t kEnough = 4;
  if (retired()) return false;
  Buffer* const buffer = take_buffer();
  if (buffer == nullptr) return false;
  if (!read({self_, remote_address(region, from), region.key}, buffer->data,
            std::min(bytes, kEnough), buffer->descriptor, buffer->operation)) {
    return false;
  }
  free_.pop_back();
  buffer->told = &told;
  told.under_way = true;
  return true;
}

bool Endpoint::send_tagged(fi_addr_t to, std::uint64_t tag, std::span<const iovec> from,
                           std::span<void*> descriptors, Operation& operation) {
  if (retired()) return false;
  const ssize_t result =
      fi_tsendv(endpoint_.get(), from.data(), descriptors_ ? descriptors.data() : nullptr,
                from.size(), to, tag, &operation.context);
  if (!accepted(result, "fi_tsendv")) return false;
  operation.under_way = true;
  return true;
}

bool Endpoint::receive_tagged(std::uint64_t tag, void* data, std::size_t bytes, void* descriptor,
                              Operation& operation) {
  if (retired()) return false;
  const ssize_t result = fi_trecv(endpoint_.get(), data, bytes, descriptor, FI_ADDR_UNSPEC, tag, 0,
                                  &operation.context);
  if (!accepted(result, "fi_trecv")) return false;
  operation.under_way = true;
  return true;
}

std::uint64_t Endpoint::next_tag() { return kLargeTag | next_tag_++; }

void Endpoint::cancel(Operation& operation) {
  if (!retired() && operation.under_way) fi_cancel(&endpoint_->fid, &operation.context);
}

void Endpoint::buffer_received(Operation& operation, const std::string& error) {
  Buffer& buffer = *static_cast<Buffer*>(operation.owner);
  Endpoint& endpoint = *buffer.endpoint;
  const std::size_t bytes = endpoint.received_bytes_;
  // What fails here, such as a stranger's message that is too long, concerns no connection.
  if (error.empty()) endpoint.deliver(buffer, bytes);
  endpoint.unposted_.push_back(&buffer);
}

void Endpoint::post_again() {
  posting_.swap(unposted_);
  for (Buffer* const buffer : posting_) {
    if (!retired()) post(*buffer);
  }
  posting_.clear();
}

void Endpoint::deliver(Buffer& buffer, std::size_t bytes) {
  const std::optional<Header> header = decode(buffer.data, bytes);
  if (!header) return;
  const auto member = members_.find(header->to);
  if (member == members_.end() || member->second->proof() != header->proof) return;
  member->second->on_message(*header, std::span(buffer.data, bytes).subspan(kHeaderBytes));
}

void Endpoint::buffer_sent(Operation& operation, const std::string& error) {
  Buffer& buffer = *static_cast<Buffer*>(operation.owner);
  Endpoint& endpoint = *buffer.endpoint;
  endpoint.free_.push_back(&buffer);
  if (Operation* const told = std::exchange(buffer.told, nullptr); told != nullptr) {
    told->under_way = false;
    told->finished(*told, error);
  }
}

void Endpoint::take_word(std::uint64_t word) {
  const auto found = tickets_.find(ticket_of(word));
  if (found == tickets_.end()) return;
  Member& member = *found->second;
  tickets_.erase(found);
  member.on_written(ticket_of(word), bytes_of(word));
}

void Endpoint::finish(void* context, std::size_t bytes, const std::string& error) {
  if (context == nullptr) return;
  auto& operation = *static_cast<Operation*>(context);
  operation.under_way = false;
  received_bytes_ = bytes;
  operation.finished(operation, error);
}

void Endpoint::take_error() {
  QueueError error;
  const fi_cq_err_entry& entry = error.entry;
  const ssize_t got = fi_cq_readerr(queue_.get(), &error.entry, 0);
  if (got < 0) return;
  std::string words = library_->words(entry.err);
  std::array<char, 128> detail{};
  const char* const own =
      fi_cq_strerror(queue_.get(), entry.prov_errno, entry.err_data, detail.data(), detail.size());
  if (own != nullptr && *own != '\0') words += fmt::format(": {}", own);
  finish(entry.op_context, entry.len, words);
}

bool Endpoint::progress() {
  bool any = false;
  if (!unposted_.empty()) post_again();
  for (int round = 0; round < kReadRounds && !retired(); ++round) {
    std::array<fi_cq_tagged_entry, kReadAtOnce> entries;
    const ssize_t got = fi_cq_read(queue_.get(), entries.data(), entries.size());
    if (got == -FI_EAGAIN || got == 0) break;
    any = true;
    if (got == -FI_EAVAIL) {
      take_error();
      continue;
    }
    if (got < 0) {
      retire(fmt::format("fi_cq_read: {}", library_->words(got)));
      break;
    }
    for (const fi_cq_tagged_entry& entry :
         std::span(entries).first(static_cast<std::size_t>(got))) {
      if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
        take_word(entry.data);
      } else {
        finish(entry.op_context, entry.len, {});
      }
    }
    if (unposted_.size() >= kMostUnposted) post_again();
    if (static_cast<std::size_t>(got) < entries.size()) break;
  }
  return any;
}

void Endpoint::progress_all() {
  progress();
  for (const auto& [number, member] : members_) member->on_wait();
}

void Endpoint::retire(const std::string& reason) {
  if (retired()) return;
  log::warn("ofi: the endpoint of {} on {} is closed: {}", device_.provider, device_.name, reason);
  close_endpoint();
  for (const auto& [number, member] : members_) member->on_retired(reason);
}

}  // namespace ropewalk::transport::ofi
