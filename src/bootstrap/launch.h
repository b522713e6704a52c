// Which rank this process is, from the launcher's environment, and how ranks get the unique id.
//
// Launchers: torchrun, mpirun of Open MPI and of MPICH (Hydra), srun, or the variables
// ROPEWALK_RANK, ROPEWALK_WORLD_SIZE and ROPEWALK_RENDEZVOUS, which come before all others.
//
// The unique id travels by one of
//   all ranks on one host (default)   an abstract Unix socket of rank 0, named from user and job;
//                                     both ends check the other's user id (SO_PEERCRED)
//   ROPEWALK_RENDEZVOUS=local:NAME    the same, named from user and NAME
//   ROPEWALK_RENDEZVOUS=file:PATH     a file that all ranks see; rank 0 writes it (mode 0600, name
//                                     made unique by the job) and removes it after joining
//   ROPEWALK_RENDEZVOUS=tcp://H:P     rank 0 listens on host H, port P; both ends prove that they
//                                     hold the secret in ROPEWALK_SECRET_FILE, and the id is
//                                     encrypted. torchrun on several hosts: MASTER_ADDR and
//                                     MASTER_PORT + 1, when ROPEWALK_SECRET_FILE is set.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "bootstrap/bootstrap.h"

namespace ropewalk::bootstrap {

using EnvironmentMap = std::map<std::string, std::string>;

/// This process' environment.
EnvironmentMap current_environment();

/// Identity of the process that started this job's ranks on this host: MPICH's proxy where it is an
/// ancestor of this process, else the parent. "pid.start-time".
std::string launcher_process();

struct LaunchEnvironment {
  std::string launcher;  ///< "Ropewalk", "torchrun", "Open MPI", "MPICH", "Slurm"; "none": alone
  int rank = 0;
  int size = 1;
  int local_rank = -1;      ///< among the ranks of this host; -1 when the launcher does not tell
  int local_size = -1;      ///< ranks on this host; -1 when the launcher does not tell
  std::string job;          ///< the same for all ranks of the job, on all hosts; may be empty
  std::string local_job;    ///< the same for all ranks on this host, another for each job
  std::string rendezvous;   ///< ROPEWALK_RENDEZVOUS
  std::string secret_file;  ///< ROPEWALK_SECRET_FILE
  std::string master;       ///< torchrun: "MASTER_ADDR:MASTER_PORT + 1"

  /// As far as the launcher says.
  [[nodiscard]] bool several_hosts() const noexcept { return local_size >= 0 && local_size < size; }
};

/// @throws Error kInvalidArgument naming the variables: half of a pair is missing, a value is no
///         number, the rank is outside the size, or two launchers contradict each other
LaunchEnvironment detect(const EnvironmentMap& environment,
                         const std::string& launcher_process_identity);
LaunchEnvironment detect();

/// The unique id, and on rank 0 what serves it to the others. Keep until joined.
class Meeting {
 public:
  explicit Meeting(const UniqueId& id, std::shared_ptr<void> server = nullptr)
      : id_(id), server_(std::move(server)) {}
  [[nodiscard]] const UniqueId& id() const noexcept { return id_; }

 private:
  UniqueId id_;
  std::shared_ptr<void> server_;
};

/// Makes the id on rank 0, fetches it on the others. Blocks: on one host until all have come.
///
/// @throws Error kTimeout naming the ranks that did not come, or rank 0
/// @throws Error kInvalidUsage when no method is set up; the message names the settings
/// @throws Error kInvalidArgument for a malformed ROPEWALK_RENDEZVOUS or an unusable secret file
Meeting rendezvous(const LaunchEnvironment& environment, const Config& config, Deadline deadline);
Meeting rendezvous(const LaunchEnvironment& environment, const Config& config, Deadline deadline,
                   Context& context);

}  // namespace ropewalk::bootstrap
