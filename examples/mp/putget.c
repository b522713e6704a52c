/* One-sided messages of libmp, in a ring of ranks: each puts a block into its neighbour's window.
 *
 * Three ways to say that the data is there: a send after prepared puts, the same as one queue of
 * descriptors, and a word that the target waits for. Then all read rank 0's window by gets.
 *
 * Run: mpirun -n 4 ./putget, or under another launcher if it was compiled without MPI.
 */
#include <mp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { kBlocks = 4, kNumbers = 1000 };

static void check(int result) {
  if (result == MP_SUCCESS) return;
  fprintf(stderr, "%s\n", mp_last_error());
  exit(EXIT_FAILURE);
}

struct Part {
  double numbers[kBlocks][kNumbers];
  uint32_t rounds; /* raised by the neighbour, after its puts */
};

static struct Part part, out;

static void fill(int rank, int round) {
  for (int b = 0; b < kBlocks; ++b) {
    for (int k = 0; k < kNumbers; ++k) out.numbers[b][k] = 1000.0 * rank + 10.0 * round + b;
  }
  out.rounds = (uint32_t)round;
}

static void expect(int rank, int round) {
  for (int b = 0; b < kBlocks; ++b) {
    for (int k = 0; k < kNumbers; ++k) {
      if (part.numbers[b][k] == 1000.0 * rank + 10.0 * round + b) continue;
      fprintf(stderr, "putget: wrong data in round %d\n", round);
      exit(EXIT_FAILURE);
    }
  }
}

int main(int argc, char** argv) {
#ifdef MPI_VERSION
  MPI_Init(&argc, &argv);
  check(mp_init(MPI_COMM_WORLD, NULL, 0, MP_INIT_DEFAULT, MP_HOST_ONLY));
#else
  (void)argc;
  (void)argv;
  check(mp_init_env(NULL, 0, MP_INIT_DEFAULT, MP_HOST_ONLY));
#endif
  const int rank = mp_rank();
  const int right = (rank + 1) % mp_size();
  const int left = (rank + mp_size() - 1) % mp_size();
  mp_reg_t out_reg, note_reg;
  mp_window_t window;
  char note = 0, free_note = 0;
  check(mp_register(&out, sizeof out, &out_reg));
  check(mp_register(&note, sizeof note, &note_reg));
  check(mp_window_create(&part, sizeof part, &window));
  mp_reg_t free_reg;
  check(mp_register(&free_note, sizeof free_note, &free_reg));
  mp_desc_queue_t queue;
  check(mp_desc_queue_alloc(&queue));

  for (int round = 1; round <= 3; ++round) {
    mp_request_t puts[kBlocks], send, receive, given, taken;
    fill(rank, round);
    /* The puts are prepared while nothing is sent. */
    for (int b = 0; b < kBlocks; ++b) {
      check(mp_put_prepare(out.numbers[b], sizeof out.numbers[b], &out_reg, right,
                           (size_t)b * sizeof out.numbers[b], &window, &puts[b], 0));
    }
    check(mp_irecv(&note, 1, left, &note_reg, &receive));
    if (round == 1) { /* one post, then a send: it is seen after them */
      check(mp_iput_post_all_on_stream(kBlocks, puts, NULL));
      check(mp_isend_on_stream(&out, 1, right, &out_reg, &send, NULL));
      check(mp_wait(&receive));
    } else if (round == 2) { /* all of it in one queue */
      check(mp_send_prepare(&out, 1, right, &out_reg, &send));
      for (int b = 0; b < kBlocks; ++b) check(mp_desc_queue_add_send(&queue, &puts[b]));
      check(mp_desc_queue_add_send(&queue, &send));
      check(mp_desc_queue_add_wait_recv(&queue, &receive));
      check(mp_desc_queue_post_on_stream(NULL, &queue, 0));
      check(mp_wait(&receive));
    } else { /* a word, put last */
      mp_request_t raise;
      check(mp_iput_post_all_on_stream(kBlocks, puts, NULL));
      check(mp_iput_on_stream(&out.rounds, sizeof out.rounds, &out_reg, right,
                              offsetof(struct Part, rounds), &window, &raise, MP_PUT_INLINE, NULL));
      check(mp_wait32(&part.rounds, (uint32_t)round, MP_WAIT_GEQ));
      check(mp_wait(&raise));
      check(mp_isend(&out, 1, right, &out_reg, &send));
      check(mp_wait(&receive));
    }
    expect(left, round);
    check(mp_wait_all(kBlocks, puts));
    check(mp_wait(&send));
    /* The left neighbour may put again. */
    check(mp_irecv(&free_note, 1, right, &free_reg, &taken));
    check(mp_isend(&out, 1, left, &out_reg, &given));
    check(mp_wait(&taken));
    check(mp_wait(&given));
  }

  double first = 0;
  mp_reg_t first_reg;
  mp_request_t get;
  check(mp_register(&first, sizeof first, &first_reg));
  check(mp_iget(&first, sizeof first, &first_reg, 0, 0, &window, &get));
  check(mp_wait(&get));
  printf("rank %d of %d: from rank %d, and rank 0 has %g\n", rank, mp_size(), left, first);
  check(mp_desc_queue_free(&queue));
  check(mp_window_destroy(&window));
  mp_finalize();
#ifdef MPI_VERSION
  MPI_Finalize();
#endif
  return EXIT_SUCCESS;
}
