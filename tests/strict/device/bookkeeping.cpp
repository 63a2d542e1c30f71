// The kernels of a GPU as C++: a block's threads are one, or threads of the processor that wait for each other.
// Compiled by bookkeeping.py with -I to the folder of the sources.

#include <math.h>
#include <pthread.h>

#include <thread>
#include <vector>

struct Place {
    unsigned x;
};
static thread_local Place threadIdx, blockIdx, blockDim;
static pthread_barrier_t barrier;

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)

static inline void __syncthreads() {
    if (blockDim.x > 1) pthread_barrier_wait(&barrier);
}

#include "bookkeeping.cu"

template <typename Parameters>
static void run(void (*kernel)(Parameters), const void* parameters, Int blocks, Int threads) {
    const Parameters given = *static_cast<const Parameters*>(parameters);
    auto thread = [=](unsigned own) {
        threadIdx.x = own;
        blockDim.x = static_cast<unsigned>(threads);
        for (Int block = 0; block < blocks; ++block) {
            blockIdx.x = static_cast<unsigned>(block);
            kernel(given);
            __syncthreads();  // the next block uses the same shared memory
        }
    };
    if (threads == 1) return thread(0);
    pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(threads));
    std::vector<std::thread> others;
    for (Int own = 0; own < threads; ++own) others.emplace_back(thread, static_cast<unsigned>(own));
    for (auto& other : others) other.join();
    pthread_barrier_destroy(&barrier);
}

#define RUN(name, Parameters)                                                      \
    extern "C" void run_##name(const void* parameters, Int blocks, Int threads) { \
        run<Parameters>(name, parameters, blocks, threads);                        \
    }

RUN(begin, Begin)
RUN(slots, SlotWindow)
RUN(copy_block, CopyBlock)
RUN(judge, Judgement)
RUN(commit, Judgement)
RUN(beam_step, BeamStep)
