// rendezvous() of launch.h: how the unique id gets from rank 0 to the others.
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "bootstrap/handshake.h"
#include "bootstrap/join_protocol.h"
#include "bootstrap/launch.h"
#include "bootstrap/listener.h"
#include "bootstrap/wire.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/mutex.h"
#include "core/socket.h"
#include "core/unix_socket.h"

namespace ropewalk::bootstrap {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kRetry{10};

bool passed(Deadline deadline) { return deadline != kNoDeadline && Clock::now() >= deadline; }

void ask_program() { check_interrupt("rendezvous"); }

/// At each turn of a wait: whether to take one more.
/// @throws Error kInterrupted
bool goes_on(Deadline deadline) {
  thread_local Clock::time_point next_ask;
  if (const Clock::time_point now = Clock::now(); now >= next_ask) {
    next_ask = now + kInterruptPeriod;
    ask_program();
  }
  return !passed(deadline);
}

int poll_ms(Deadline deadline) {
  constexpr std::int64_t kLongest = kInterruptPeriod.count();
  if (deadline == kNoDeadline) return kLongest;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, kLongest));
}

std::string hash_text(std::string_view text) {
  require_sodium();
  std::array<unsigned char, 16> hash{};
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), nullptr, 0);
  std::array<char, 33> hex{};
  sodium_bin2hex(hex.data(), hex.size(), hash.data(), hash.size());
  return hex.data();
}

std::vector<int> without(int size, const std::map<int, pid_t>& there) {
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!there.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

// ---- one host: an abstract Unix socket
// -----------------------------------------------------------

// The request of a rank, and the answer. Both ends belong to one user on one host.
struct LocalRequest {
  std::uint32_t magic = 0x71525752;
  std::int32_t rank = 0;
  std::int32_t size = 0;
};
struct LocalReply {
  std::uint32_t status = 0;  // 1: the id; 2: the text; 0: not now, ask again
  UniqueId id{};
  std::array<char, 512> text{};
};

/// Goes with the socket: no file is left.
UnixAddress local_address_of(std::string_view job) {
  return abstract_address(fmt::format("ropewalk-{}-{}", geteuid(), hash_text(job)));
}

/// Whether two processes have asked as one rank. 0: a process that cannot be seen from here.
bool is_another(pid_t first, pid_t second) {
  return first > 0 && second > 0 && first != second && kill(first, 0) == 0;
}

/// Waits for the whole of `data`; false when the other end closed or the time is over.
bool read_whole(const FileDescriptor& socket, void* data, std::size_t bytes, Deadline deadline) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(socket.get(), to, bytes, 0);
    if (got == 0) return false;
    if (got > 0) {
      to += got;
      bytes -= static_cast<std::size_t>(got);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    if (!goes_on(deadline)) return false;
    (void)wait_ready(socket.get(), POLLIN, poll_ms(deadline));
  }
  return true;
}

/// The answers are smaller than any socket buffer, so that sending does not block.
void answer(const FileDescriptor& socket, std::uint32_t status, const UniqueId& id,
            const std::string& text) {
  LocalReply out;
  out.status = status;
  out.id = id;
  std::copy_n(text.begin(), std::min(text.size(), out.text.size() - 1), out.text.begin());
  (void)!::send(socket.get(), &out, sizeof out, MSG_NOSIGNAL);
}

void serve_local(const LaunchEnvironment& environment, const UniqueId& id,
                 const UnixAddress& address, Deadline deadline) {
  FileDescriptor listener = stream_socket(AF_UNIX);
  while (::bind(listener.get(), address.get(), address.bytes) != 0) {
    if (errno != EADDRINUSE) throw system_error(errno, "bind of the rendezvous socket");
    if (!goes_on(deadline)) {
      throw Error(Errc::kTimeout, "rendezvous: another process serves as rank 0 of this job ({})",
                  environment.local_job);
    }
    std::this_thread::sleep_for(kRetry);  // an earlier rendezvous of this job is about to end
  }
  if (::listen(listener.get(), 4096) != 0) throw system_error(errno, "listen");

  std::map<int, pid_t> served = {{0, getpid()}};  // ranks, and who asked first
  std::vector<FileDescriptor> asking;
  const auto give_up = [&asking](Errc code, const std::string& text) {
    for (const FileDescriptor& socket : asking) answer(socket, 2, {}, text);
    throw Error(code, text);
  };
  while (served.size() < static_cast<std::size_t>(environment.size)) {
    std::vector<pollfd> waiting = {{listener.get(), POLLIN, 0}};
    for (const FileDescriptor& socket : asking) waiting.push_back({socket.get(), POLLIN, 0});
    (void)poll(waiting.data(), waiting.size(), poll_ms(deadline));
    if (!goes_on(deadline)) {
      give_up(Errc::kTimeout,
              fmt::format("rendezvous: {} of {} did not come",
                          rank_list(without(environment.size, served)), environment.size));
    }
    for (std::size_t i = asking.size(); i-- > 0;) {
      if (waiting[i + 1].revents == 0) continue;
      LocalRequest request;
      const bool whole = ::recv(asking[i].get(), &request, sizeof request, MSG_DONTWAIT) ==
                         static_cast<ssize_t>(sizeof request);
      if (whole && request.magic == LocalRequest{}.magic) {
        if (request.size != environment.size || request.rank <= 0 ||
            request.rank >= environment.size) {
          give_up(Errc::kInvalidArgument,
                  fmt::format("rendezvous: rank {} counts {} ranks, rank 0 counts {}", request.rank,
                              request.size, environment.size));
        }
        const pid_t process = peer_of(asking[i].get()).pid;
        const auto [first, fresh] = served.try_emplace(request.rank, process);
        if (is_another(first->second, process)) {
          give_up(Errc::kInvalidArgument,
                  fmt::format("rendezvous: two processes are rank {} of {}: {} and {}",
                              request.rank, environment.size, first->second, process));
        }
        // Served before: it comes for the next communicator already.
        answer(asking[i], fresh ? 1 : 0, id, {});
      }
      asking.erase(asking.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (;;) {
      int error = 0;
      FileDescriptor socket = accept_from(listener, nullptr, &error);
      if (!socket) break;
      if (peer_of(socket.get()).same_user) asking.push_back(std::move(socket));
    }
  }
}

UniqueId fetch_local(const LaunchEnvironment& environment, const UnixAddress& address,
                     Deadline deadline) {
  std::string problem = "no process listens there";
  while (goes_on(deadline)) {
    FileDescriptor socket = stream_socket(AF_UNIX);
    if (::connect(socket.get(), address.get(), address.bytes) == 0) {
      if (const UnixPeer peer = peer_of(socket.get()); !peer.same_user) {
        problem = fmt::format("the socket belongs to user {}", peer.user);
      } else {
        LocalRequest request;
        request.rank = environment.rank;
        request.size = environment.size;
        LocalReply in;
        if (::send(socket.get(), &request, sizeof request, MSG_NOSIGNAL) ==
                static_cast<ssize_t>(sizeof request) &&
            read_whole(socket, &in, sizeof in, deadline)) {
          if (in.status == 1) return in.id;
          if (in.status == 2) {
            in.text.back() = '\0';
            throw Error(Errc::kInvalidArgument, "{}", in.text.data());
          }
        }
      }
    }
    std::this_thread::sleep_for(kRetry);
  }
  throw Error(Errc::kTimeout,
              "rendezvous: rank {} of {} ({}) did not find rank 0 on this host: {}. Ranks in "
              "several hosts or network namespaces need ROPEWALK_RENDEZVOUS",
              environment.rank, environment.size, environment.launcher, problem);
}

Meeting meet_locally(const LaunchEnvironment& environment, std::string_view job,
                     const Config& config, Deadline deadline, Context& context) {
  const UnixAddress address = local_address_of(job);
  if (environment.rank != 0) return Meeting(fetch_local(environment, address, deadline));
  const UniqueId id = make_unique_id(config, context);
  serve_local(environment, id, address, deadline);
  return Meeting(id);
}

// ---- a shared file
// -------------------------------------------------------------------------------

/// Removes the file when the ranks have joined.
class SharedFile {
 public:
  SharedFile(std::string path, const UniqueId& id) : path_(std::move(path)) {
    const std::string draft = fmt::format("{}.{}", path_, getpid());
    const FileDescriptor file(::open(
        draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    if (!file) throw system_error(errno, fmt::format("rendezvous: creating {}", draft));
    if (::write(file.get(), id.data(), id.size()) != static_cast<ssize_t>(id.size()) ||
        ::fsync(file.get()) != 0 || ::rename(draft.c_str(), path_.c_str()) != 0) {
      const int error = errno;
      ::unlink(draft.c_str());
      throw system_error(error, fmt::format("rendezvous: writing {}", path_));
    }
  }
  ~SharedFile() { ::unlink(path_.c_str()); }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

 private:
  std::string path_;
};

/// The root service of `id` answers with its public id. A file may be left from a killed job.
bool root_answers(const UniqueIdParts& id, Deadline deadline) {
  try {
    const FileDescriptor socket = start_connect(id.address);
    (void)wait_ready(socket.get(), POLLOUT, poll_ms(deadline));
    if (connect_error(socket) != 0) return false;
    std::array<std::byte, Session::kChallengeBytes> challenge{};
    if (!read_whole(socket, challenge.data(), challenge.size(),
                    std::min(deadline, Clock::now() + std::chrono::seconds(5)))) {
      return false;
    }
    return std::memcmp(challenge.data() + 8, id.service.data(), id.service.size()) == 0;
  } catch (const Error& error) {
    if (error.code() == Errc::kInterrupted) throw;
    return false;
  }
}

Meeting meet_by_file(const LaunchEnvironment& environment, const std::string& given,
                     const Config& config, Deadline deadline, Context& context) {
  if (given.empty()) {
    throw Error(Errc::kInvalidArgument, "ROPEWALK_RENDEZVOUS=file: has no path");
  }
  const std::string path =
      environment.job.empty() ? given : fmt::format("{}.{}", given, hash_text(environment.job));
  if (environment.rank == 0) {
    const UniqueId id = make_unique_id(config, context);
    return Meeting(id, std::make_shared<SharedFile>(path, id));
  }
  std::string problem = "it is not there";
  while (goes_on(deadline)) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    struct stat info {};
    if (file && fstat(file.get(), &info) == 0) {
      UniqueId id{};
      if (info.st_uid != geteuid() || (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        problem = "it is another user's, or others may read or write it";
      } else if (::read(file.get(), id.data(), id.size()) == static_cast<ssize_t>(id.size()) &&
                 root_answers(decode_unique_id(id), deadline)) {
        return Meeting(id);
      } else {
        problem = "the id in it is not valid any more";
      }
    } else if (!file && errno != ENOENT) {
      problem = system_words(errno);
    }
    std::this_thread::sleep_for(kRetry);
  }
  throw Error(Errc::kTimeout, "rendezvous: rank {} of {} waited for rank 0's file {}: {}",
              environment.rank, environment.size, path, problem);
}

// ---- TCP with a secret file
// ----------------------------------------------------------------------

constexpr ServiceId kRendezvousService = {'r', 'w', 'm', 'e', 'e', 't', 0, 1};

Secret read_secret(const std::string& path) {
  if (path.empty()) {
    throw Error(Errc::kInvalidUsage,
                "ROPEWALK_RENDEZVOUS=tcp:// needs ROPEWALK_SECRET_FILE: a file of at least 16 "
                "random bytes, the same on all hosts, readable by you alone");
  }
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || fstat(file.get(), &info) != 0) {
    throw Error(Errc::kInvalidArgument, "ROPEWALK_SECRET_FILE={}: {}", path, system_words(errno));
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw Error(Errc::kInvalidArgument,
                "ROPEWALK_SECRET_FILE={}: others may read or write it; chmod 600 {}", path, path);
  }
  std::array<unsigned char, 4097> bytes{};
  const ssize_t got = ::read(file.get(), bytes.data(), bytes.size());
  if (got < 16 || got > 4096) {
    throw Error(Errc::kInvalidArgument, "ROPEWALK_SECRET_FILE={}: it has {} 16 to 4096 bytes", path,
                got < 16 ? "fewer than the" : "more than the");
  }
  require_sodium();
  Secret secret{};
  const std::string_view purpose = "ropewalk rendezvous secret";
  crypto_generichash(secret.data(), secret.size(), bytes.data(), static_cast<std::size_t>(got),
                     reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size());
  sodium_memzero(bytes.data(), bytes.size());
  return secret;
}

/// Hands the id to every rank that proves the secret, once. Service thread; kept by the Service.
class IdServer {
 public:
  IdServer(Service& service, FileDescriptor socket, const Secret& secret, const UniqueId& id,
           int size)
      : service_(service),
        id_(id),
        size_(size),
        listener_(
            service, std::move(socket), secret, kRendezvousService,
            [this](std::unique_ptr<Connection> connection) { serve(std::move(connection)); }) {}

 private:
  void serve(std::unique_ptr<Connection> made) {
    const std::shared_ptr<Connection> connection = std::move(made);
    const Claims claims = connection->claims();
    WireWriter out;
    if (claims.purpose != Claims::Purpose::kRendezvous || claims.size != size_ ||
        claims.rank <= 0 || claims.rank >= size_) {
      out.number(std::uint8_t{2});
      out.text(fmt::format("rendezvous: rank {} counts {} ranks, rank 0 counts {}", claims.rank,
                           claims.size, size_));
    } else if (!served_.insert(claims.rank).second) {
      out.number(std::uint8_t{0});  // it comes for the next communicator already
    } else {
      out.number(std::uint8_t{1});
      out.raw(id_);
    }
    Connection* key = connection.get();
    connection->set_owner(
        {{}, {}, [this, key](const Closing&) {
           service_.defer([this, key] {
             std::erase_if(asking_, [&](const auto& one) { return one.get() == key; });
             if (asking_.empty() && served_.size() + 1 == static_cast<std::size_t>(size_)) {
               service_.drop(this);
             }
           });
         }});
    asking_.push_back(connection);
    connection->send(out.bytes());
  }

  Service& service_;
  UniqueId id_;
  int size_;
  std::set<int> served_;
  std::vector<std::shared_ptr<Connection>> asking_;
  Listener listener_;
};

/// Ends the IdServer, when rank 0 has joined or given up.
class IdServerHandle {
 public:
  IdServerHandle(std::shared_ptr<Service> service, std::shared_ptr<std::weak_ptr<IdServer>> server)
      : service_(std::move(service)), server_(std::move(server)) {}
  ~IdServerHandle() {
    Service& service = *service_;
    service.post([&service, server = server_] {
      if (const auto there = server->lock()) service.drop(there.get());
    });
  }
  IdServerHandle(const IdServerHandle&) = delete;
  IdServerHandle& operator=(const IdServerHandle&) = delete;

 private:
  std::shared_ptr<Service> service_;
  std::shared_ptr<std::weak_ptr<IdServer>> server_;
};

FileDescriptor listen_here(const SocketAddress& address, Deadline deadline) {
  for (;;) {
    try {
      return listen_on(address, nullptr);
    } catch (const Error&) {
      // In use: an earlier rendezvous of this job may be about to end.
      if (!goes_on(deadline)) throw;
    }
    std::this_thread::sleep_for(kRetry);
  }
}

/// One attempt to fetch. Service thread, with its result for the caller's thread.
struct Fetch {
  Mutex mutex;
  std::condition_variable changed;
  bool done RW_GUARDED_BY(mutex) = false;
  std::uint8_t status RW_GUARDED_BY(mutex) = 0;
  UniqueId id RW_GUARDED_BY(mutex){};
  std::string text RW_GUARDED_BY(mutex);
  std::unique_ptr<Connection> connection;  // service thread
};

Meeting meet_by_tcp(const LaunchEnvironment& environment, const std::string& where,
                    const Config& config, Deadline deadline, Context& context) {
  const Secret secret = read_secret(environment.secret_file);
  const SocketAddress address = resolve(where).front();
  const std::shared_ptr<Service> service = context.service();
  if (environment.rank == 0) {
    const UniqueId id = make_unique_id(config, context);
    if (environment.size == 1) return Meeting(id);
    const auto socket = std::make_shared<FileDescriptor>(
        listen_here(address, std::min(deadline, Clock::now() + std::chrono::seconds(10))));
    const auto holder = std::make_shared<std::weak_ptr<IdServer>>();
    service->post([&service = *service, socket, secret, id, size = environment.size, holder] {
      auto server = std::make_shared<IdServer>(service, std::move(*socket), secret, id, size);
      *holder = server;
      service.keep(std::move(server));
    });
    return Meeting(id, std::make_shared<IdServerHandle>(service, holder));
  }
  Claims claims;
  claims.purpose = Claims::Purpose::kRendezvous;
  claims.rank = environment.rank;
  claims.size = environment.size;
  std::string problem;
  while (goes_on(deadline)) {
    const auto fetch = std::make_shared<Fetch>();
    service->post([&service = *service, fetch, address, secret, claims] {
      const auto finish = [&service, fetch](std::uint8_t status, const UniqueId& id,
                                            const std::string& text) {
        const Lock lock(fetch->mutex);
        if (fetch->done) return;
        fetch->done = true;
        fetch->status = status;
        fetch->id = id;
        fetch->text = text;
        service.defer([gone = std::shared_ptr<Connection>(std::move(fetch->connection))] {});
        service.drop(fetch.get());
        fetch->changed.notify_all();
      };
      Connection::Owner owner;
      owner.on_message = [finish](std::vector<std::byte>& message) {
        WireReader in(message);
        const auto status = in.number<std::uint8_t>();
        UniqueId id{};
        if (status == 1) in.fill(id);
        finish(status, id, status == 2 ? in.text(4096) : std::string());
      };
      owner.on_closed = [finish](const Closing& closing) { finish(0, {}, closing.reason); };
      service.keep(fetch);
      try {
        fetch->connection = Connection::connect(
            service, address, Session::client(secret, kRendezvousService, claims),
            Clock::now() + Listener::kProofTime, std::move(owner));
      } catch (const Error& error) {
        finish(0, {}, error.what());
      }
    });
    {
      Lock lock(fetch->mutex);
      // kProofTime at most
      lock.wait_until(
          fetch->changed, kNoDeadline, [&]() RW_REQUIRES(fetch->mutex) { return fetch->done; },
          kInterruptPeriod, ask_program);
      if (fetch->status == 1) return Meeting(fetch->id);
      if (fetch->status == 2) throw Error(Errc::kInvalidArgument, "{}", fetch->text);
      problem = fetch->text;
    }
    std::this_thread::sleep_for(kRetry);
  }
  throw Error(Errc::kTimeout,
              "rendezvous: rank {} of {} did not get the unique id from rank 0 at {}: {}. Is "
              "ROPEWALK_SECRET_FILE the same everywhere?",
              environment.rank, environment.size, where, problem);
}

}  // namespace

Meeting rendezvous(const LaunchEnvironment& environment, const Config& config, Deadline deadline) {
  return rendezvous(environment, config, deadline, Context::process());
}

Meeting rendezvous(const LaunchEnvironment& environment, const Config& config, Deadline deadline,
                   Context& context) {
  const std::string& method = environment.rendezvous;
  if (method.starts_with("file:")) {
    return meet_by_file(environment, method.substr(5), config, deadline, context);
  }
  if (method.starts_with("tcp://")) {
    return meet_by_tcp(environment, method.substr(6), config, deadline, context);
  }
  if (method.starts_with("local:") && method.size() > 6) {
    return meet_locally(environment, method, config, deadline, context);
  }
  if (!method.empty()) {
    throw Error(Errc::kInvalidArgument,
                "ROPEWALK_RENDEZVOUS=\"{}\" is not one of local:NAME, file:PATH, tcp://HOST:PORT",
                method);
  }
  if (environment.size == 1) return Meeting(make_unique_id(config, context));
  if (environment.several_hosts()) {
    if (!environment.master.empty() && !environment.secret_file.empty()) {
      return meet_by_tcp(environment, environment.master, config, deadline, context);
    }
    throw Error(Errc::kInvalidUsage,
                "{} started {} ranks on several hosts: set {}ROPEWALK_RENDEZVOUS=file:PATH on a "
                "file system that all see, or ROPEWALK_RENDEZVOUS=tcp://HOST:PORT of rank 0's host "
                "and ROPEWALK_SECRET_FILE",
                environment.launcher, environment.size,
                environment.master.empty() ? ""
                                           : "ROPEWALK_SECRET_FILE (the unique id then goes "
                                             "through MASTER_ADDR and MASTER_PORT + 1), or ");
  }
  return meet_locally(environment, environment.local_job, config, deadline, context);
}

}  // namespace ropewalk::bootstrap
