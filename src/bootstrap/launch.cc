#include "bootstrap/launch.h"

#include <unistd.h>

#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "core/error.h"

extern char** environ;

namespace ropewalk::bootstrap {
namespace {

/// The variables with which one launcher passes rank and size.
struct Source {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Source kRopewalk = {"Ropewalk", "ROPEWALK_RANK", "ROPEWALK_WORLD_SIZE", "", ""};
constexpr Source kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Source kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Source kMpich = {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Source kSlurm = {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""};

std::string text_of(const EnvironmentMap& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

std::optional<int> number_of(const EnvironmentMap& environment, const std::string& name) {
  const auto found = environment.find(name);
  if (name.empty() || found == environment.end()) return std::nullopt;
  const std::string& text = found->second;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(Errc::kInvalidArgument, "{}=\"{}\" is not a number", name, text);
  }
  return value;
}

/// @return nothing when the launcher's variables are not there
std::optional<LaunchEnvironment> read(const Source& source, const EnvironmentMap& environment) {
  const auto rank = number_of(environment, source.rank);
  const auto size = number_of(environment, source.size);
  if (!rank && !size) return std::nullopt;
  if (!rank || !size) {
    throw Error(Errc::kInvalidArgument, "{} is set, but {} is not ({})",
                rank ? source.rank : source.size, rank ? source.size : source.rank,
                source.launcher);
  }
  if (*size < 1) {
    throw Error(Errc::kInvalidArgument, "{}={} is not a number of ranks", source.size, *size);
  }
  if (*rank < 0 || *rank >= *size) {
    throw Error(Errc::kInvalidArgument, "{}={} is outside 0 to {} ({}={})", source.rank, *rank,
                *size - 1, source.size, *size);
  }
  LaunchEnvironment found;
  found.launcher = source.launcher;
  found.rank = *rank;
  found.size = *size;
  found.local_rank = number_of(environment, source.local_rank).value_or(-1);
  found.local_size = number_of(environment, source.local_size).value_or(-1);
  if (found.local_size > found.size) {
    throw Error(Errc::kInvalidArgument, "{}={} is more than {}={}", source.local_size,
                found.local_size, source.size, found.size);
  }
  return found;
}

/// The values of `names` that are set, joined.
std::string joined(const EnvironmentMap& environment, const std::vector<const char*>& names) {
  std::string text;
  for (const char* name : names) {
    const std::string value = text_of(environment, name);
    if (!value.empty()) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  }
  return text;
}

std::optional<LaunchEnvironment> read_torchrun(const EnvironmentMap& environment) {
  // RANK and WORLD_SIZE are everybody's words: alone, one of them is not torchrun's.
  if (!environment.contains("RANK") || !environment.contains("WORLD_SIZE")) {
    if (!environment.contains("MASTER_ADDR") && !environment.contains("TORCHELASTIC_RUN_ID")) {
      return std::nullopt;
    }
  }
  auto found = read(kTorchrun, environment);
  if (!found) return found;
  found->job = joined(environment, {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                    "MASTER_ADDR", "MASTER_PORT"});
  const std::string address = text_of(environment, "MASTER_ADDR");
  if (const auto port = number_of(environment, "MASTER_PORT"); port && !address.empty()) {
    const bool v6 = address.find(':') != std::string::npos;
    found->master = fmt::format("{}{}{}:{}", v6 ? "[" : "", address, v6 ? "]" : "", *port + 1);
  }
  return found;
}

std::optional<LaunchEnvironment> read_slurm(const EnvironmentMap& environment) {
  // A batch script has a rank, too, but is no step: it may start mpirun, or run alone.
  std::string step = text_of(environment, "SLURM_STEP_ID");
  if (step.empty()) step = text_of(environment, "SLURM_STEPID");
  if (step.empty()) return std::nullopt;
  auto found = read(kSlurm, environment);
  if (!found) return found;
  found->job =
      joined(environment, {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_ID", "SLURM_STEPID"});
  auto nodes = number_of(environment, "SLURM_STEP_NUM_NODES");
  if (!nodes) nodes = number_of(environment, "SLURM_NNODES");
  // The number of ranks per node is given as "2(x3),1" for all nodes; what counts is whether it is
  // all.
  if (nodes) found->local_size = *nodes == 1 ? found->size : 0;
  return found;
}

struct ProcessLine {
  std::string name;
  int parent = 0;
  std::string start_time;
};

std::optional<ProcessLine> process_line(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const std::size_t open = line.find('(');
  const std::size_t close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return std::nullopt;
  ProcessLine found;
  found.name = line.substr(open + 1, close - open - 1);
  std::istringstream fields(line.substr(close + 1));
  std::string skipped;
  fields >> skipped >> found.parent;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  fields >> found.start_time;
  return found;
}

}  // namespace

EnvironmentMap current_environment() {
  EnvironmentMap map;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    const std::size_t equals = variable.find('=');
    if (equals == std::string_view::npos) continue;
    map.emplace(variable.substr(0, equals), variable.substr(equals + 1));
  }
  return map;
}

std::string launcher_process() {
  const auto identity = [](int pid) {
    const auto line = process_line(pid);
    return line ? fmt::format("{}.{}", pid, line->start_time) : fmt::format("{}", pid);
  };
  // Each rank may be started through a script; their common ancestor is the proxy above.
  int pid = getppid();
  for (int depth = 0; depth < 32 && pid > 1; ++depth) {
    const auto line = process_line(pid);
    if (!line) break;
    if (line->name == "hydra_pmi_proxy") return identity(pid);
    pid = line->parent;
  }
  return identity(getppid());
}

LaunchEnvironment detect(const EnvironmentMap& environment,
                         const std::string& launcher_process_identity) {
  std::vector<LaunchEnvironment> found;
  const auto add = [&](std::optional<LaunchEnvironment> one) {
    if (one) found.push_back(std::move(*one));
  };
  add(read(kRopewalk, environment));
  if (found.empty()) {
    add(read_torchrun(environment));
    if (auto mpi = read(kOpenMpi, environment)) {
      mpi->job = joined(environment, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
      add(std::move(mpi));
    }
    add(read(kMpich, environment));
    // Slurm's are also there when mpirun or torchrun was started by it; then those say more.
    if (found.empty()) add(read_slurm(environment));
  }
  for (std::size_t i = 1; i < found.size(); ++i) {
    if (found[i].rank == found[0].rank && found[i].size == found[0].size) continue;
    const auto source = [](const LaunchEnvironment& one) -> const Source& {
      if (one.launcher == kTorchrun.launcher) return kTorchrun;
      return one.launcher == kOpenMpi.launcher ? kOpenMpi : kMpich;
    };
    const Source& a = source(found[0]);
    const Source& b = source(found[i]);
    throw Error(Errc::kInvalidArgument,
                "launchers contradict each other: {}={} {}={}, but {}={} {}={}; set ROPEWALK_RANK, "
                "ROPEWALK_WORLD_SIZE and ROPEWALK_RENDEZVOUS to decide",
                a.rank, found[0].rank, a.size, found[0].size, b.rank, found[i].rank, b.size,
                found[i].size);
  }
  LaunchEnvironment result;
  result.launcher = "none";
  if (!found.empty()) result = found.front();
  result.local_job = result.job.empty() ? "started by " + launcher_process_identity : result.job;
  result.rendezvous = text_of(environment, "ROPEWALK_RENDEZVOUS");
  result.secret_file = text_of(environment, "ROPEWALK_SECRET_FILE");
  if (found.empty() && !result.rendezvous.empty()) {
    throw Error(Errc::kInvalidArgument,
                "ROPEWALK_RENDEZVOUS is set, but neither ROPEWALK_RANK and ROPEWALK_WORLD_SIZE nor "
                "a launcher's variables are");
  }
  return result;
}

LaunchEnvironment detect() { return detect(current_environment(), launcher_process()); }

}  // namespace ropewalk::bootstrap
