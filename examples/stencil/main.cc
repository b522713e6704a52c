// A stencil on ranks: the exchange of edges between neighbours, in several forms.
//
// Run: ./stencil [--form FORM] [--width N] [--height N] [--iterations N] [--at-once N]
// [--verify 0|1], under a launcher: mpirun -n 4 ./stencil --form host
//
// With --at-once, an even number, the forms "graph", "stream_batch" and "kernel" launch so many
// iterations by one call of the CPU, which sleeps until they are done.
//
// Rank 0 prints a line: the time of an iteration (of the slowest rank) and the CPU time that one
// takes on all ranks together. With --verify it computes the whole rectangle alone, too, and
// compares every bit; the program fails when one differs.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "solver.h"

namespace {

using stencil::Domain;
using stencil::Field;

struct Options {
  std::string form;
  int width = 512;
  int height = 512;
  int iterations = 100;
  int at_once = 1;
  bool verify = true;
};

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "stencil: %s\n", text.c_str());
  std::exit(EXIT_FAILURE);
}

Options options_of(int argc, char** argv) {
  Options options;
  options.form = stencil::forms().front();
  for (int k = 1; k < argc; k += 2) {
    const std::string name = argv[k];
    if (k + 1 == argc) fail(name + ": needs a value");
    const char* const value = argv[k + 1];
    if (name == "--form") {
      options.form = value;
    } else if (name == "--width") {
      options.width = std::atoi(value);
    } else if (name == "--height") {
      options.height = std::atoi(value);
    } else if (name == "--iterations") {
      options.iterations = std::atoi(value);
    } else if (name == "--at-once") {
      options.at_once = std::atoi(value);
    } else if (name == "--verify") {
      options.verify = std::atoi(value) != 0;
    } else {
      fail(name + ": no such option");
    }
  }
  const std::vector<std::string> known = stencil::forms();
  if (std::find(known.begin(), known.end(), options.form) == known.end()) {
    std::string all;
    for (const std::string& form : known) all += " " + form;
    fail("--form " + options.form + ": this program has:" + all);
  }
  if (options.iterations < 1) fail("--iterations: not positive");
  if (options.at_once != 1) {
    if (options.at_once < 2 || options.at_once % 2 != 0) fail("--at-once: neither 1 nor even");
    if (!stencil::has_many_at_once(options.form)) {
      fail("--at-once: --form " + options.form + " launches them one by one");
    }
  }
  return options;
}

double seconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The whole rectangle by one rank.
Field alone(const Options& options, int iterations) {
  const Domain whole(options.width, options.height, 0, 1);
  Field now(whole.nx(), whole.ny());
  now.set_initial(whole);
  Field next = now;
  for (int k = 0; k < iterations; ++k) {
    relax(now, next, {0, now.nx()}, {0, now.ny()});
    std::swap(now, next);
  }
  return now;
}

// Cells that differ from what one rank computes alone; on rank 0.
std::size_t wrong_cells(stencil::Ranks& ranks, const Options& options, const Domain& domain,
                        const Field& field, int iterations) {
  const std::size_t room = static_cast<std::size_t>(domain.longest_edge()) *
                           static_cast<std::size_t>(domain.longest_edge());
  std::vector<double> mine(room);
  std::vector<double> all(ranks.rank() == 0 ? room * static_cast<std::size_t>(ranks.size()) : 0);
  for (int y = 0; y < field.ny(); ++y) {
    std::copy(field.row(y), field.row(y) + field.nx(),
              mine.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(field.nx()));
  }
  ranks.gather(mine.data(), room, all.data());
  if (ranks.rank() != 0) return 0;
  const Field right = alone(options, iterations);
  std::size_t wrong = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Domain its(options.width, options.height, rank, ranks.size());
    const double* cell = all.data() + room * static_cast<std::size_t>(rank);
    for (int y = its.y().begin; y < its.y().end; ++y) {
      for (int x = its.x().begin; x < its.x().end; ++x, ++cell) wrong += *cell != right.row(y)[x];
    }
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  const std::unique_ptr<stencil::Ranks> ranks = stencil::join(&argc, &argv);
  const Options options = options_of(argc, argv);
  const Domain domain(options.width, options.height, ranks->rank(), ranks->size());
  if (options.width < domain.columns() || options.height < domain.rows()) {
    fail("--width, --height: a rank would have no cell");
  }
  Field field(domain.nx(), domain.ny());
  field.set_initial(domain);
  const std::unique_ptr<stencil::Solver> solver =
      stencil::make_solver(options.form, *ranks, domain, options.at_once);

  // The first iterations are not timed, but count.
  const int warmup = std::max(std::min(10, options.iterations), options.at_once);
  solver->load(field);
  solver->run(warmup);
  ranks->barrier();
  const double cpu_s = seconds(CLOCK_PROCESS_CPUTIME_ID);
  const double begin_s = seconds(CLOCK_MONOTONIC);
  solver->run(options.iterations);
  const double mine[2] = {seconds(CLOCK_MONOTONIC) - begin_s,
                          seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_s};
  std::vector<double> all(2 * static_cast<std::size_t>(ranks->size()));
  ranks->gather(mine, 2, all.data());
  solver->store(field);
  std::size_t wrong = 0;
  if (options.verify) {
    wrong = wrong_cells(*ranks, options, domain, field, warmup + options.iterations);
  }
  if (ranks->rank() == 0) {
    double slowest_s = 0;
    double used_s = 0;
    for (std::size_t k = 0; k < all.size(); k += 2) {
      slowest_s = std::max(slowest_s, all[k]);
      used_s += all[k + 1];
    }
    std::printf("%s: %d x %d cells on %d x %d ranks: %.3f us an iteration, %.3f us of CPU, %s\n",
                options.form.c_str(), options.width, options.height, domain.columns(),
                domain.rows(), 1e6 * slowest_s / options.iterations,
                1e6 * used_s / options.iterations,
                !options.verify ? "not verified"
                : wrong == 0    ? "right"
                                : (std::to_string(wrong) + " cells are wrong").c_str());
  }
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
