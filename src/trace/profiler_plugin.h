// Another's profiler plugin for NCCL (NCCL's Inspector, CoMMA, ...), called as NCCL calls it: by
// versions 1 to 6 of the interface (NCCL 2.23 to 2.30), of which the newest that it has is used.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace ropewalk::trace {

/// A collective or a message, as it is told.
struct ProfiledOperation {
  bool message = false;
  std::string function;  ///< "AllReduce", "Send"
  std::uint64_t number = 0;
  std::uint64_t count = 0;
  std::string type;  ///< "ncclFloat32"
  int root_or_peer = 0;
  std::string algorithm;  ///< "RING"; what has no name there is "RING", too
  std::string protocol;   ///< "SIMPLE"
};

/// A plugin that is loaded. Threads: any makes contexts; a context has one at a time.
class ProfilerPlugin : public std::enable_shared_from_this<ProfilerPlugin> {
 public:
  /// @param name  a file, or NAME for libnccl-profiler-NAME.so, as for NCCL_PROFILER_PLUGIN
  /// @throws Error kSystem if it cannot be loaded or has no version that is known
  static std::shared_ptr<ProfilerPlugin> load(const std::string& name);
  ~ProfilerPlugin();
  ProfilerPlugin(const ProfilerPlugin&) = delete;
  ProfilerPlugin& operator=(const ProfilerPlugin&) = delete;

  [[nodiscard]] int version() const noexcept { return version_; }
  /// As it calls itself.
  [[nodiscard]] std::string name() const;

  /// One communicator of one rank. What the plugin answers with an error is not told further.
  class Context {
   public:
    struct Communicator {
      std::string name;
      std::uint64_t id = 0;
      int num_nodes = 1;
      int num_ranks = 1;
      int rank = 0;
    };
    /// @throws Error kSystem if the plugin refuses
    Context(std::shared_ptr<ProfilerPlugin> plugin, const Communicator& communicator);
    /// Calls finalize.
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    /// The events of an operation; those are null that the plugin does not follow.
    struct Events {
      void* group = nullptr;
      void* api = nullptr;
      void* operation = nullptr;
      void* kernel = nullptr;
    };
    /// It was called: its events begin, down to the operation's.
    Events begin(const ProfiledOperation& operation);
    /// Its kernel began and ended, in ns of one clock.
    void begin_kernel(Events& events, std::uint64_t ns);
    void end_kernel(Events& events, std::uint64_t ns);
    /// Ends what is open, the innermost first.
    void end(Events& events);

   private:
    class Descriptor;
    [[nodiscard]] bool follows(unsigned kind) const noexcept { return (mask_ >> kind & 1) != 0; }
    void* start(const Descriptor& descriptor);
    void stop(void*& event);

    std::shared_ptr<ProfilerPlugin> plugin_;
    Communicator communicator_;
    void* context_ = nullptr;
    int mask_ = 0;
  };

 private:
  // The six words of ncclProfiler_vN.
  struct Table {
    const char* name;
    void* init;
    int (*start_event)(void* context, void** event, void* descriptor);
    int (*stop_event)(void* event);
    int (*record_state)(void* event, int state, void* arguments);
    int (*finalize)(void* context);
  };
  ProfilerPlugin(void* handle, const Table* table, int version)
      : handle_(handle), table_(table), version_(version) {}

  void* handle_;
  const Table* table_;
  int version_;
};

}  // namespace ropewalk::trace
