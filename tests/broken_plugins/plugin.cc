#include "plugin.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "faults.h"

namespace broken {
namespace {

constexpr std::size_t kMostRequests = 64;
constexpr int kMostParts = 8;

struct Context {};

// The system chooses short abstract names, so that the used part of a handle fits 64 bytes.
constexpr std::size_t kNameBytes = 32;
struct SentHandle {
  char name[kNameBytes];
  std::uint32_t address_bytes;
  std::int32_t pid;
};

struct Header {
  std::uint64_t bytes;
  std::int64_t tag;
};

struct Comm;

struct Request {
  Comm* comm = nullptr;
  bool sends = false;
  bool done = false;
  bool gpu = false;
  int parts = 1;
  std::array<char*, kMostParts> data{};
  std::array<std::size_t, kMostParts> room{};
  std::array<int, kMostParts> tags{};
  std::array<std::size_t, kMostParts> came{};
  std::array<bool, kMostParts> filled{};
  // Sends.
  Header header{};
  std::size_t header_sent = 0;
  std::size_t sent = 0;
  bool written = false;
  std::uint64_t acknowledged = 0;
  std::size_t acknowledged_bytes = 0;
  int tests = 0;
};

struct Stashed {
  std::int64_t tag;
  std::vector<char> bytes;
};

struct Comm {
  int fd = -1;
  bool sends = false;
  int number = 0;
  bool connected = true;  // what "connect-first" waits for
  std::deque<Request*> queue;
  std::atomic<int> in_flight{0};
  std::atomic<bool> used{false};
  // Receiving: the message that is being read.
  Header header{};
  std::size_t header_read = 0;
  std::vector<char> body;
  std::size_t body_read = 0;
  std::deque<Stashed> stash;
  std::uint64_t messages = 0;
  std::deque<std::uint64_t> owed;   // acknowledgements
  const void* last_done = nullptr;  // of the last receive that was reported as done
  char* last_end = nullptr;         // of the last message, for "late-writes"
  char last_bytes[8] = {};
  int polls = 0;
};

struct ListenComm {
  int fd = -1;
  std::vector<int> accepted;
  int accepts = 0;
};

struct Registration {
  void* data;
  std::size_t bytes;
  int type;
};

abi::Logger log_to = nullptr;
std::atomic<int> inits{0};
std::atomic<int> contexts{0};
std::atomic<int> connects{0};
std::atomic<bool> finalized{false};
std::atomic<int> comms{0};
std::atomic<bool> has_received{false};
std::atomic<int> inside{0};
std::atomic<int> merged{0};
std::mutex registered_mutex;
std::multiset<void*> registered;

// Sends wait for the receiver's acknowledgement.
bool acknowledges() { return fault("reg-is-global") || fault("last-receive"); }

abi::Result lost() { return abi::kRemoteError; }

// ---- bytes into the user's buffer -----------------------------------------------------------

void copy_up(char* to, const char* from, std::size_t bytes) {
  std::size_t i = 0;
  // Whole aligned words where that can be: the reader may look while they come.
  if (reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {
    for (; i + 8 <= bytes; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, from + i, 8);
      std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to + i)).store(word);
    }
  }
  if (i < bytes) std::memcpy(to + i, from + i, bytes - i);
}

void deliver(char* to, const char* from, std::size_t bytes, std::size_t room) {
  if (fault("ll-lines") && bytes >= 4096) {
    for (std::size_t i = 0; i + 8 <= bytes; i += 8) std::memcpy(to + i + 4, from + i + 4, 4);
    usleep(300);
  }
  if (fault("ll128-lines") && bytes >= 4096) {
    copy_up(to + 120, from + 120, 8);
    usleep(300);
  }
  copy_up(to, from, bytes);
  if (fault("larger-receive") && room > bytes) to[bytes] = 0;
  if (fault("transfer") && bytes > 0) to[bytes / 2] ^= 1;
  if (fault("sizes") && bytes > 65'536) to[bytes - 1] ^= 1;
  if (fault("offsets")) {
    const std::size_t whole = std::min(room + 64, (bytes + 63) / 64 * 64);
    if (bytes > 0 && bytes != 4096) std::memset(to + bytes, 0, whole - bytes);
  }
}

// ---- progress -------------------------------------------------------------------------------

// @return whether the connection still stands
bool write_some(int fd, const void* data, std::size_t bytes, std::size_t* written) {
  const ssize_t count = ::send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  *written = count > 0 ? static_cast<std::size_t>(count) : 0;
  return count >= 0 || errno == EAGAIN || errno == EINTR;
}

bool read_some(int fd, void* data, std::size_t bytes, std::size_t* read) {
  const ssize_t count = ::recv(fd, data, bytes, MSG_DONTWAIT);
  *read = count > 0 ? static_cast<std::size_t>(count) : 0;
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR)) || bytes == 0;
}

abi::Result progress_sends(Comm& comm) {
  const bool forgiving = fault("lost-receiver");
  for (Request* request : comm.queue) {
    while (!request->written) {
      std::size_t written = 0;
      const bool header = request->header_sent < sizeof(Header);
      const char* from =
          header ? reinterpret_cast<const char*>(&request->header) + request->header_sent
                 : request->data[0] + request->sent;
      const std::size_t left =
          header ? sizeof(Header) - request->header_sent : request->header.bytes - request->sent;
      if (!write_some(comm.fd, from, left, &written)) {
        if (!forgiving) return lost();
        written = left;
      }
      if (written == 0 && left > 0) return abi::kSuccess;
      (header ? request->header_sent : request->sent) += written;
      request->written =
          request->header_sent == sizeof(Header) && request->sent == request->header.bytes;
      if (request->written && !acknowledges()) request->done = true;
    }
    if (!acknowledges()) continue;
    while (!request->done) {
      std::size_t read = 0;
      auto* place = reinterpret_cast<char*>(&request->acknowledged) + request->acknowledged_bytes;
      if (!read_some(comm.fd, place, 8 - request->acknowledged_bytes, &read)) return lost();
      if (read == 0) break;
      request->acknowledged_bytes += read;
      request->done = request->acknowledged_bytes == 8;
    }
    if (!request->done) break;
  }
  return abi::kSuccess;
}

void pay(Comm& comm) {
  while (!comm.owed.empty()) {
    std::size_t written = 0;
    write_some(comm.fd, &comm.owed.front(), 8, &written);
    comm.owed.pop_front();
  }
}

// Puts a message into the group that waits. @return false when it is for a later one
bool place(Comm& comm, std::int64_t tag, const char* bytes, std::size_t size) {
  if (comm.queue.empty()) return false;
  Request* head = nullptr;
  for (Request* request : comm.queue) {
    if (!request->done) {
      head = request;
      break;
    }
  }
  if (head == nullptr) return false;
  int part = -1;
  for (int i = 0; i < head->parts && part < 0; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool right = head->parts == 1 || head->tags[at] == tag || fault("groups");
    if (!head->filled[at] && right) part = i;
  }
  if (part < 0) return false;
  const auto at = static_cast<std::size_t>(part);
  const std::size_t taken =
      fault("truncation") && size > head->room[at] ? size : std::min(size, head->room[at]);
  if (fault("late-writes") && comm.last_end != nullptr) {
    std::memcpy(comm.last_end - 8, comm.last_bytes, 8);
  }
  deliver(head->data[at], bytes, taken, head->room[at]);
  if (fault("gpu-transfer") && head->gpu && taken > 0) head->data[at][taken - 1] ^= 1;
  if (taken >= 8) {
    comm.last_end = head->data[at] + taken;
    std::memcpy(comm.last_bytes, comm.last_end - 8, 8);
  }
  head->came[at] = fault("received-size-posted") ? head->room[at] : taken;
  head->filled[at] = true;
  head->done = std::all_of(head->filled.begin(), head->filled.begin() + head->parts,
                           [](bool filled) { return filled; });
  if (acknowledges()) {
    comm.owed.push_back(taken);
    if (!fault("last-receive")) pay(comm);
  }
  return true;
}

bool someone_waits(const Comm& comm) {
  return std::any_of(comm.queue.begin(), comm.queue.end(),
                     [](const Request* request) { return !request->done; });
}

bool hung_up(const Comm& comm) {
  pollfd state{comm.fd, POLLIN, 0};
  return poll(&state, 1, 0) == 1 && (state.revents & POLLHUP) != 0;
}

abi::Result progress_receives(Comm& comm) {
  const bool forgiving = fault("lost-sender");
  // Discards data that came before.
  if (fault("early-end") && hung_up(comm)) return lost();
  for (;;) {
    bool placed = false;
    for (auto it = comm.stash.begin(); it != comm.stash.end() && !placed; ++it) {
      if (place(comm, it->tag, it->bytes.data(), it->bytes.size())) {
        comm.stash.erase(it);
        placed = true;
      }
    }
    if (placed) continue;
    if (!someone_waits(comm)) return abi::kSuccess;
    std::size_t read = 0;
    if (comm.header_read < sizeof(Header)) {
      if (!read_some(comm.fd, reinterpret_cast<char*>(&comm.header) + comm.header_read,
                     sizeof(Header) - comm.header_read, &read)) {
        return forgiving ? abi::kSuccess : lost();
      }
      comm.header_read += read;
      if (comm.header_read < sizeof(Header)) return abi::kSuccess;
      comm.body.resize(comm.header.bytes);
      comm.body_read = 0;
    }
    while (comm.body_read < comm.body.size()) {
      if (!read_some(comm.fd, comm.body.data() + comm.body_read, comm.body.size() - comm.body_read,
                     &read)) {
        return forgiving ? abi::kSuccess : lost();
      }
      if (read == 0) return abi::kSuccess;
      comm.body_read += read;
    }
    comm.header_read = 0;
    ++comm.messages;
    if (!place(comm, comm.header.tag, comm.body.data(), comm.body.size())) {
      if (fault("group-order")) return abi::kInternalError;
      comm.stash.push_back({comm.header.tag, std::move(comm.body)});
      comm.body = {};
    }
  }
}

abi::Result progress(Comm& comm) {
  if (fault("fairness") && comm.number % 4 != 1 && ++comm.polls % 100 != 0) return abi::kSuccess;
  return comm.sends ? progress_sends(comm) : progress_receives(comm);
}

// ---- connections ----------------------------------------------------------------------------

int new_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

void* idle_thread(void*) {
  for (;;) pause();
}
void leave_thread() {
  pthread_t thread{};
  pthread_create(&thread, nullptr, idle_thread, nullptr);
}

Comm* new_comm(int fd, bool sends) {
  auto comm = std::make_unique<Comm>();
  comm->fd = fd;
  comm->sends = sends;
  comm->number = ++comms;
  if (fault("leaks-thread")) leave_thread();
  if (fault("leaks-mapping")) {
    // Taken in turn, so that the kernel cannot join neighbours.
    mmap(nullptr, 4096, comm->number % 2 == 0 ? PROT_READ : PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
         -1, 0);
  }
  if (fault("leaks-segment")) {
    const std::string name = "/dev/shm/rw-broken-plugin-" + std::to_string(getpid()) + "-" +
                             std::to_string(comm->number);
    close(open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  }
  return comm.release();
}

bool peer_closed(const Comm& comm) {
  char byte = 0;
  return ::recv(comm.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

abi::Result close_comm(void* pointer) {
  if (pointer == nullptr) return fault("close-null") ? abi::kInvalidArgument : abi::kSuccess;
  auto* comm = static_cast<Comm*>(pointer);
  if (!comm->sends) pay(*comm);
  if (fault("close-order") && peer_closed(*comm)) return abi::kRemoteError;
  for (Request* request : comm->queue) delete request;
  if (!fault("leaks")) close(comm->fd);
  if (!fault("leaks-memory")) delete comm;
  return abi::kSuccess;
}

// What only one thread of the process may be in.
class Alone {
 public:
  explicit Alone(const char* name) : counts_(fault(name)) {
    if (!counts_) return;
    alone_ = ++inside == 1;
    usleep(200);
  }
  ~Alone() {
    if (counts_) --inside;
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  [[nodiscard]] bool holds() const { return alone_; }

 private:
  bool counts_;
  bool alone_ = true;
};

void* crash(void*) {
  usleep(1000);
  raise(SIGSEGV);
  return nullptr;
}

void* abort_later(void*) {
  pthread_setname_np(pthread_self(), "broken-late");
  usleep(200'000);
  std::abort();
}

void begin_thread(void* (*body)(void*)) {
  pthread_t thread{};
  pthread_create(&thread, nullptr, body, nullptr);
}

void start_daemon() {
  const pid_t first = fork();
  if (first == 0) {
    setsid();
    if (fork() == 0) {
      // Bounded, should nobody end it.
      alarm(60);
      pause();
    }
    _exit(0);
  }
  waitpid(first, nullptr, 0);
}

// As programs that become daemons do.
void close_all() {
  for (int fd = 0; fd < 1024; ++fd) close(fd);
}

}  // namespace

abi::Result init(void** context, abi::Logger logger) {
  enter("init");
  log_to = logger;
  if (fault("warns")) {
    log_to(abi::kLogWarn, abi::kLogNet, __FILE__, __LINE__, "no %s, going on", "configuration");
  }
  if (fault("processes")) start_daemon();
  if (fault("descriptors")) close_all();
  if (fault("init")) return static_cast<abi::Result>(42);
  if (fault("unavailable")) return abi::kSystemError;
  const int count = ++inits;
  if (fault("init-again") && (finalized || count > 1)) return abi::kInternalError;
  finalized = fault("contexts") ? finalized.load() : false;
  if (fault("unload")) leave_thread();
  if (fault("thread-crash") && count == 1) begin_thread(crash);
  ++contexts;
  if (context != nullptr) *context = fault("null-context") ? nullptr : new Context;
  return abi::kSuccess;
}

abi::Result finalize(void* context) {
  enter("finalize");
  if (context == nullptr && fault("finalize-null")) raise(SIGSEGV);
  if (fault("finalize-needs-init") && (contexts-- < 1 || context == nullptr)) {
    return abi::kInvalidUsage;
  }
  if (fault("rest")) begin_thread(abort_later);
  finalized = true;
  delete static_cast<Context*>(context);
  return abi::kSuccess;
}

abi::Result devices(int* count) {
  enter("devices");
  if (fault("devices-unwritten")) return abi::kSuccess;
  *count = fault("devices") ? -3 : fault("none") ? 0 : 2 + merged;
  return abi::kSuccess;
}

abi::Result describe(int device, Device* out) {
  enter("getProperties");
  static const std::array<const char*, 3> names = {"socket0", "socket1", "socket0+1"};
  if (device < 0 || device >= 2 + merged) return abi::kInternalError;
  const auto at = static_cast<std::size_t>(std::min(device, 2));
  const bool equal = fault("device-names") || fault("device-names-allocated");
  out->name = names[equal ? 0 : at];
  // NCCL keeps it, so that it is never freed.
  if (fault("allocated-names") || fault("device-names-allocated")) out->name = strdup(out->name);
  out->write_name = !fault("properties-written-name");
  out->pci_path = fault("pci-path") ? "/sys/class/net/lo" : nullptr;
  out->ptr_support = fault("properties") ? 8 : abi::kHostPointer;
  // GPU memory as the stand-in for libcuda has it: the host's.
  if (std::getenv("RW_BROKEN_PLUGIN_GPU") != nullptr) out->ptr_support |= abi::kCudaPointer;
  out->reg_is_global = fault("reg-is-global") || fault("truncation") ? 1 : 0;
  out->speed = 10'000;
  out->write_speed = !fault("properties-written");
  out->max_bytes = abi::kLargestMessageLimit;
  out->max_recvs = fault("one-receive") ? 1 : kMostParts;
  out->members = device < 2 ? 1 : 2;
  out->member[0] = device < 2 ? device : 0;
  out->member[1] = 1;
  return abi::kSuccess;
}

abi::Result listen(void* context, int device, void* handle, std::size_t handle_bytes, void** comm) {
  enter("listen");
  static_cast<void>(context);
  static_cast<void>(device);
  *comm = nullptr;
  if (fault("contexts") && finalized) return abi::kInternalError;
  const Alone alone("threads");
  if (!alone.holds()) return abi::kInternalError;
  auto made = std::make_unique<ListenComm>();
  made->fd = new_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Only the family: the system chooses an abstract name.
  if (made->fd < 0 || bind(made->fd, reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) ||
      ::listen(made->fd, 256)) {
    return abi::kSystemError;
  }
  socklen_t bytes = sizeof address;
  getsockname(made->fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  SentHandle sent{};
  std::memcpy(sent.name, address.sun_path, kNameBytes);
  sent.address_bytes = bytes;
  sent.pid = getpid();
  static SentHandle first = sent;
  if (fault("listen-again")) sent = first;
  std::memset(handle, 0, handle_bytes + (fault("listen") ? 16 : 0));
  std::memcpy(handle, &sent, sizeof sent);
  *comm = made.release();
  return abi::kSuccess;
}

abi::Result connect(void* context, void* handle, void** comm, bool blocks) {
  enter("connect");
  static_cast<void>(context);
  *comm = nullptr;
  if (fault("warns") && ++connects == 3) {
    log_to(abi::kLogWarn, abi::kLogNet, __FILE__, __LINE__, "third connection");
  }
  if (fault("connect")) return blocks ? abi::kSystemError : abi::kSuccess;
  if (fault("many-connections") && comms > 20) return abi::kSystemError;
  SentHandle sent{};
  std::memcpy(&sent, handle, sizeof sent);
  if (fault("self-connection") && sent.pid == getpid()) return abi::kInvalidUsage;
  // What "connect-first" has half made is kept where NCCL keeps it: in the handle's tail.
  int pending = -1;
  auto* tail = static_cast<char*>(handle) + sizeof sent;
  if (fault("connect-first")) {
    std::memcpy(&pending, tail, sizeof pending);
    if (pending > 0) {
      char byte = 0;
      if (::recv(pending, &byte, 1, MSG_DONTWAIT) == 1) *comm = new_comm(pending, true);
      return abi::kSuccess;
    }
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, sent.name, kNameBytes);
  for (;;) {
    const int fd = new_socket();
    if (fd < 0) return abi::kSystemError;
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sent.address_bytes) == 0) {
      if (fault("connect-first")) {
        std::memcpy(tail, &fd, sizeof fd);
      } else {
        *comm = new_comm(fd, true);
      }
      return abi::kSuccess;
    }
    const bool full = errno == EAGAIN;
    close(fd);
    if (!full && !fault("lost-listener")) return abi::kSystemError;
    if (full && !blocks) return abi::kSuccess;
    usleep(100);
  }
}

abi::Result accept(void* listen_comm, void** comm, bool blocks) {
  enter("accept");
  *comm = nullptr;
  auto* listening = static_cast<ListenComm*>(listen_comm);
  if (blocks || fault("not-yet")) {
    pollfd waiting{listening->fd, POLLIN, 0};
    poll(&waiting, 1, fault("not-yet") ? -1 : 10'000);
  }
  const int fd = accept4(listening->fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return blocks || errno != EAGAIN ? abi::kSystemError : abi::kSuccess;
  if (fault("second-peer") && !listening->accepted.empty()) {
    shutdown(listening->accepted.front(), SHUT_RDWR);
  }
  listening->accepted.push_back(fd);
  ++listening->accepts;
  if (fault("connect-first")) static_cast<void>(::send(fd, "", 1, MSG_NOSIGNAL));
  *comm = new_comm(fd, false);
  return abi::kSuccess;
}

void fill_device_handle(abi::DeviceHandle** handle) {
  if (handle != nullptr || fault("null-device-handle")) *handle = nullptr;
}

abi::Result reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mhandle) {
  enter("regMr");
  *mhandle = nullptr;
  auto* owner = static_cast<Comm*>(comm);
  const bool gpu = std::getenv("RW_BROKEN_PLUGIN_GPU") != nullptr;
  if (type != abi::kHostPointer && !gpu && !fault("register-type")) return abi::kInvalidArgument;
  if (fault("register") && reinterpret_cast<std::uintptr_t>(data) % 4096 != 0) {
    return abi::kInvalidArgument;
  }
  if (fault("register-meanwhile") && owner->used) return abi::kInternalError;
  if (fault("register-twice")) {
    const std::lock_guard lock(registered_mutex);
    registered.insert(data);
  }
  if (fault("null-handles") || (fault("deregister-null") && bytes < 64)) return abi::kSuccess;
  *mhandle = new Registration{data, bytes, type};
  return abi::kSuccess;
}

abi::Result dereg_mr(void* comm, void* mhandle) {
  enter("deregMr");
  auto* owner = static_cast<Comm*>(comm);
  if (mhandle == nullptr) {
    if (fault("refuses-null")) raise(SIGSEGV);
    return fault("deregister-null") ? abi::kInvalidArgument : abi::kSuccess;
  }
  if (!owner->sends) pay(*owner);
  if (fault("close-pending") && owner->in_flight > 0) return abi::kInternalError;
  auto* registration = static_cast<Registration*>(mhandle);
  if (fault("register-twice")) {
    const std::lock_guard lock(registered_mutex);
    registered.erase(registration->data);  // all of that address
  }
  delete registration;
  return abi::kSuccess;
}

abi::Result isend(void* comm, void* data, std::size_t bytes, int tag, void* mhandle,
                  void** request) {
  enter("isend");
  auto& owner = *static_cast<Comm*>(comm);
  const Alone alone("parallel");
  if (!alone.holds()) return abi::kInternalError;
  if (fault("outputs-request") && owner.queue.size() >= 4) return abi::kSuccess;
  *request = nullptr;
  if (fault("large-message") && bytes > 0x7fffffff) return abi::kInvalidArgument;
  if (fault("register-twice")) {
    const std::lock_guard lock(registered_mutex);
    if (!registered.contains(static_cast<Registration*>(mhandle)->data)) {
      return abi::kInternalError;
    }
  }
  if (fault("both-ways") && has_received) return abi::kSuccess;
  if (fault("gpu-and-host") && mhandle != nullptr &&
      static_cast<Registration*>(mhandle)->type == abi::kHostPointer && bytes == 100'000 &&
      std::getenv("RW_BROKEN_PLUGIN_GPU") != nullptr && owner.messages++ > 2) {
    return abi::kInvalidArgument;
  }
  if (fault("in-flight") && owner.queue.size() >= 4) return abi::kInternalError;
  if (fault("few-requests") && owner.queue.size() >= 8) return abi::kInternalError;
  if (owner.queue.size() >= kMostRequests) return abi::kSuccess;
  auto made = std::make_unique<Request>();
  made->comm = &owner;
  made->sends = true;
  made->data[0] = static_cast<char*>(data);
  made->header = {bytes, tag};
  ++owner.in_flight;
  owner.used = true;
  *request = made.get();
  if (fault("zero-bytes") && bytes == 0) {
    made->done = true;
    made->written = true;
    owner.queue.push_back(made.release());
    return abi::kSuccess;
  }
  // A short message goes before long ones that have not begun.
  if (fault("order") && bytes < 1000 && !owner.queue.empty() &&
      owner.queue.back()->header_sent == 0) {
    owner.queue.insert(owner.queue.end() - 1, made.release());
  } else {
    owner.queue.push_back(made.release());
  }
  const abi::Result result = progress(owner);
  if (fault("sends-first") && !static_cast<Request*>(*request)->written) return abi::kInternalError;
  return result;
}

abi::Result irecv(void* comm, int n, void** data, const std::size_t* bytes, const int* tags,
                  void** mhandles, void** request) {
  enter("irecv");
  auto& owner = *static_cast<Comm*>(comm);
  pay(owner);
  if (fault("optional-completion") && *request == reinterpret_cast<void*>(1)) {
    return abi::kSuccess;
  }
  *request = nullptr;
  if (fault("few-requests") && owner.queue.size() >= 8) return abi::kInternalError;
  if (owner.queue.size() >= kMostRequests) return abi::kSuccess;
  auto made = std::make_unique<Request>();
  made->comm = &owner;
  made->parts = n;
  const auto* registration = static_cast<Registration*>(mhandles[0]);
  made->gpu = registration != nullptr && registration->type == abi::kCudaPointer;
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    made->data[at] = static_cast<char*>(data[i]);
    made->room[at] = bytes[i];
    made->tags[at] = tags[i];
  }
  ++owner.in_flight;
  has_received = true;
  *request = made.get();
  owner.queue.push_back(made.release());
  return abi::kSuccess;
}

abi::Result iflush(void* comm, int n, void** data, void** request) {
  enter("iflush");
  static_cast<void>(n);
  *request = nullptr;
  const bool known = static_cast<Comm*>(comm)->last_done == data[0];
  return fault("gpu-flush") && !known ? abi::kInternalError : abi::kSuccess;
}

abi::Result test(void* pointer, int* done, int* sizes) {
  enter("test");
  auto* request = static_cast<Request*>(pointer);
  Comm& comm = *request->comm;
  if (!fault("outputs")) *done = 0;
  if (!comm.sends) pay(comm);
  if (fault("one-receive") && comm.queue.front() != request) return abi::kInternalError;
  if (!fault("any-request") || comm.queue.front() == request) {
    if (const abi::Result result = progress(comm); result != abi::kSuccess && !request->done) {
      return result;
    }
  }
  ++request->tests;
  if (fault("receives-first") && !comm.sends && comm.queue.size() >= 8 && comm.messages == 0 &&
      request->tests > 3) {
    request->done = true;
  }
  if (!request->done) return abi::kSuccess;
  *done = 1;
  if (!request->sends) comm.last_done = request->data[0];
  if ((sizes != nullptr && !fault("received-size")) || fault("null-sizes")) {
    if (request->sends) {
      sizes[0] = static_cast<int>(acknowledges() ? request->acknowledged : request->header.bytes);
      if (fault("ignores-sizes")) sizes[0] = 0;
    }
    const int count = request->sends ? 0 : fault("outputs-sizes") ? kMostParts : request->parts;
    for (int i = 0; i < count; ++i) {
      sizes[i] = static_cast<int>(request->came[static_cast<std::size_t>(i)]);
    }
  }
  if (fault("irecv-consumed")) return abi::kSuccess;  // irecvConsumed needs it: a leak
  comm.queue.erase(std::find(comm.queue.begin(), comm.queue.end(), request));
  --comm.in_flight;
  delete request;
  return abi::kSuccess;
}

abi::Result close_send(void* comm) {
  enter("closeSend");
  return close_comm(comm);
}

abi::Result close_recv(void* comm) {
  enter("closeRecv");
  return close_comm(comm);
}

abi::Result close_listen(void* comm) {
  enter("closeListen");
  auto* listening = static_cast<ListenComm*>(comm);
  if (fault("listen-unused") && listening->accepts == 0) return abi::kInternalError;
  if (fault("listen-closed")) {
    for (const int fd : listening->accepted) shutdown(fd, SHUT_RDWR);
  }
  if (fault("close-connecting")) {
    pollfd waiting{listening->fd, POLLIN, 0};
    if (poll(&waiting, 1, 0) == 1) std::abort();
  }
  close(listening->fd);
  delete listening;
  return abi::kSuccess;
}

abi::Result irecv_consumed(void* comm, int n, void* request) {
  enter("irecvConsumed");
  static_cast<void>(comm);
  static_cast<void>(n);
  static_cast<void>(request);
  return abi::kInternalError;
}

abi::Result make_virtual_device(int* device, const int* members, int count) {
  enter("makeVDevice");
  if (count != 2 || members[0] != 0 || members[1] != 1) return abi::kInvalidUsage;
  if (fault("virtual-device")) {
    *device = 0;
    return abi::kSuccess;
  }
  merged = 1;
  *device = 2;
  return abi::kSuccess;
}

abi::Result set_net_attributes(void* context) {
  enter("setNetAttr");
  static_cast<void>(context);
  if (fault("attributes")) raise(SIGSEGV);
  return abi::kSuccess;
}

}  // namespace broken
