// A GPU's block on one thread of a CPU: every thread of the block is a fiber, 32 of them are the lanes of a warp, and what
// CUDA has for them is here. So the branch of the sources that NVRTC compiles runs, with the sizes of blocks that it has.
//
// Fibers run until they meet: lanes of a warp in a shuffle, a tensor core or __syncwarp, all threads in __syncthreads. Who
// runs first is a schedule, see Order: what depends on it is a race. It is an error to meet at different places, not to
// meet at all, to read 16 bytes elsewhere than at a multiple of 16, to leave an array. Memory that is shared holds no
// numbers when a block begins.
//
// A kernel may begin before those before it have ended. So it is an error if a thread does not wait for them. Where tensors
// lie on pages of their own, these pages are closed until all threads of the block wait: whatever is there by then, and
// whenever earlier kernels write it, the kernel cannot have read it, or written to it.

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "emulator.h"

#define APART __attribute__((noipa))  // other fibers run within: nothing is known of memory behind it

extern unsigned char __start_shared_memory[] __attribute__((weak)), __stop_shared_memory[] __attribute__((weak));

Place threadIdx, blockIdx, blockDim;

namespace gpu {

constexpr unsigned WARP = 32, MOST = 1024;
constexpr size_t STACK = 128 * 1024;

enum Order { FORWARD, BACKWARD, RANDOM };  // of warps, of their lanes, and of blocks
enum Waits { AS_WRITTEN, NOBODY, NOT_THE_LAST };  // the last thread of a block ends before it waits
enum State { READY, IN_WARP, IN_BLOCK, WAITING, ENDED };

struct Fiber {
    void *at[5], *end[5]; // where it goes on, and where it ends
    bool made = false;   // it has a stack
    State state = ENDED;
    int line = 0;        // of the source, where it waits
    bool said = false;   // what it says in __syncthreads_or
    bool waited = false; // for earlier kernels
    unsigned in[16], out[4];
};

struct Machine {
    Fiber fibers[MOST];
    std::vector<unsigned> warps, lanes, blocks;  // in the order in which they run
    unsigned met[MOST / WARP];                   // lanes of each warp that wait for the others
    unsigned threads = 0, thread = 0, waiting = 0, early = 0, ended = 0;  // early: threads that wait for earlier kernels
    Launch launch;
    struct sigaction others;
    bool said = false, any = false;
    Order order = FORWARD;
    std::mt19937 chance;
    std::string trouble;
    void* scheduler[5];
    void (*work)(const void*) = nullptr;
};
static Machine m;

APART static void go_to(void** at) { __builtin_longjmp(at, 1); }

// From the scheduler to a fiber, or back.
APART static void change(void** from, void** to) {
    if (__builtin_setjmp(from) == 0) go_to(to);
}

APART [[noreturn]] static void fail_so(const std::string& what) {
    const Fiber& fiber = m.fibers[m.thread];
    if (m.trouble.empty()) {
        m.trouble = what + ", block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(m.thread) + ", line " + std::to_string(fiber.line);
    }
    go_to(m.scheduler);
    __builtin_unreachable();
}

void fail(const char* what) { fail_so(what); }

APART static void pause() {
    const unsigned thread = m.thread;
    change(m.fibers[thread].at, m.scheduler);
    threadIdx.x = thread;
}

APART static void allow(bool everything) {
    for (long long i = 0; i < m.launch.count; ++i) {
        const Pages& pages = m.launch.pages[i];
        if (pages.name) mprotect(pages.begin, static_cast<size_t>(pages.bytes), everything ? PROT_READ | PROT_WRITE : static_cast<int>(pages.before));
    }
}

// Memory that is closed was read or written.
static void on_closed(int, siginfo_t* what, void*) {
    const unsigned char* at = static_cast<unsigned char*>(what->si_addr);
    for (long long i = 0; i < m.launch.count; ++i) {
        const Pages& pages = m.launch.pages[i];
        if (at < pages.begin || at >= pages.begin + pages.bytes) continue;
        if (pages.name) fail_so(std::string(pages.name) + " is read or written before the wait for earlier kernels");
        fail("memory behind a tensor is read or written");
    }
    sigaction(SIGSEGV, &m.others, nullptr);  // not ours
}

APART static void wait_for_earlier(int line) {
    Fiber& fiber = m.fibers[m.thread];
    fiber.line = line;
    if (m.launch.waits == NOBODY) return;
    if (m.launch.waits == NOT_THE_LAST && m.thread + 1 == m.threads) go_to(fiber.end);
    fiber.waited = true;
    if (!m.launch.count) return;
    fiber.state = WAITING;
    if (++m.early == m.threads) {
        m.early = 0;
        allow(true);
        for (unsigned i = 0; i < m.threads; ++i) m.fibers[i].state = READY;
    }
    pause();
}

// What every fiber runs, again for each block.
static void live() {
    for (;;) {
        const unsigned thread = m.thread;
        if (__builtin_setjmp(m.fibers[thread].end) == 0) m.work(m.launch.parameters);
        if (!m.fibers[thread].waited) fail("a thread has not waited for earlier kernels");
        m.fibers[thread].state = ENDED;
        ++m.ended;
        pause();
    }
}

APART static void resume(unsigned thread) {
    Fiber& fiber = m.fibers[thread];
    m.thread = thread;
    threadIdx.x = thread;
    if (fiber.made) return change(m.scheduler, fiber.at);
    fiber.made = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    context.uc_stack.ss_size = STACK;
    makecontext(&context, live, 0);
    if (__builtin_setjmp(m.scheduler) == 0) setcontext(&context);
}

// Runs all lanes of a warp until none can go on.
static void run_warp(unsigned warp) {
    for (bool some = true; some;) {
        some = false;
        if (m.order == RANDOM) std::shuffle(m.lanes.begin(), m.lanes.end(), m.chance);
        for (unsigned lane : m.lanes) {
            const unsigned thread = warp * WARP + lane;
            if (m.fibers[thread].state != READY) continue;
            some = true;
            resume(thread);
            if (!m.trouble.empty()) return;
        }
        if (m.order == RANDOM && m.chance() % 2) return;  // others overtake it
    }
}

static void run_block() {
    m.waiting = m.early = m.ended = 0;
    memset(m.met, 0, sizeof m.met);
    for (unsigned thread = 0; thread < m.threads; ++thread) {
        m.fibers[thread].state = READY;
        m.fibers[thread].waited = false;
    }
    allow(false);
    memset(__start_shared_memory, 0xff, static_cast<size_t>(__stop_shared_memory - __start_shared_memory));
    while (m.ended < m.threads) {
        if (m.order == RANDOM) std::shuffle(m.warps.begin(), m.warps.end(), m.chance);
        bool some = false;
        for (unsigned warp : m.warps) {
            for (unsigned lane = 0; lane < WARP && !some; ++lane) some = m.fibers[warp * WARP + lane].state == READY;
            run_warp(warp);
            if (!m.trouble.empty()) return;
        }
        if (!some) {
            m.thread = m.warps[0] * WARP;
            m.trouble = "threads wait for ever: " + std::to_string(m.waiting) + " at __syncthreads, " + std::to_string(m.early) + " for earlier kernels, " + std::to_string(m.ended) + " have ended";
            return;
        }
    }
}

const char* run(const Launch& launch, void (*work)(const void*)) {
    static std::mutex one_at_a_time;
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    m.launch = launch;
    m.work = work;
    m.order = static_cast<Order>(launch.order);
    m.chance.seed(static_cast<unsigned>(launch.seed));
    m.trouble.clear();
    struct Caught {  // while this is there
        Caught() {
            struct sigaction action = {};
            action.sa_sigaction = on_closed;
            action.sa_flags = SA_SIGINFO | SA_NODEFER;
            sigaction(SIGSEGV, &action, &m.others);
            for (long long i = 0; i < m.launch.count; ++i) {
                const Pages& pages = m.launch.pages[i];
                if (!pages.name) mprotect(pages.begin, static_cast<size_t>(pages.bytes), PROT_NONE);
            }
        }
        ~Caught() {
            allow(true);
            sigaction(SIGSEGV, &m.others, nullptr);
        }
    } caught;
    m.threads = blockDim.x = static_cast<unsigned>(launch.threads);
    auto in_order = [&](std::vector<unsigned>& numbers, size_t count) {
        numbers.resize(count);
        for (unsigned i = 0; i < count; ++i) numbers[i] = m.order == BACKWARD ? static_cast<unsigned>(count) - 1 - i : i;
        if (m.order == RANDOM) std::shuffle(numbers.begin(), numbers.end(), m.chance);
    };
    in_order(m.blocks, static_cast<size_t>(launch.blocks));
    for (unsigned block : m.blocks) {
        in_order(m.warps, m.threads / WARP);
        in_order(m.lanes, WARP);
        blockIdx.x = block;
        run_block();
        if (m.trouble.empty()) continue;
        for (Fiber& fiber : m.fibers) fiber.made = false;  // they stand anywhere; their stacks are lost
        return m.trouble.c_str();
    }
    return nullptr;
}

static bool left_out(const char* file, int line) {
    return m.launch.line == line && strcmp(file + strlen(file) - strlen(m.launch.file), m.launch.file) == 0;
}

// All threads of the block meet.
APART bool meet_block(bool mine, const char* file, int line) {
    if (left_out(file, line)) return mine;
    Fiber& fiber = m.fibers[m.thread];
    fiber.state = IN_BLOCK;
    fiber.line = line;
    m.any = (m.waiting > 0 && m.any) || mine;
    if (++m.waiting == m.threads) {
        m.waiting = 0;
        m.said = m.any;
        for (unsigned i = 0; i < m.threads; ++i) {
            if (m.fibers[i].line != line) fail_so("threads meet at different places, lines " + std::to_string(m.fibers[i].line) + " and " + std::to_string(line));
            m.fibers[i].state = READY;
            m.fibers[i].said = m.said;
        }
    }
    if (m.ended) fail("threads wait for one that has ended");
    pause();
    return m.fibers[m.thread].said;
}

// All lanes of a warp meet; the last one does the work, for which each has left its numbers.
template <typename Work>
static const unsigned* work_together(int line, Work work) {
    Fiber& fiber = m.fibers[m.thread];
    const unsigned first = m.thread / WARP * WARP;
    fiber.state = IN_WARP;
    fiber.line = line;
    if (++m.met[first / WARP] == WARP) {
        m.met[first / WARP] = 0;
        Fiber* lanes = &m.fibers[first];
        for (unsigned lane = 0; lane < WARP; ++lane) {
            if (lanes[lane].line != line) fail_so("lanes meet at different places, lines " + std::to_string(lanes[lane].line) + " and " + std::to_string(line));
        }
        work(lanes);
        for (unsigned lane = 0; lane < WARP; ++lane) lanes[lane].state = READY;
    }
    pause();
    return m.fibers[m.thread].out;
}

void meet_warp(const char* file, int line) {
    if (!left_out(file, line)) work_together(line, [](Fiber*) {});
}

static inline float of_half(unsigned bits) {
    const unsigned short half = static_cast<unsigned short>(bits);
    _Float16 x;
    memcpy(&x, &half, sizeof x);
    return x;
}

static inline float of_bfloat(unsigned bits) { return number(bits << 16); }

int shuffle(unsigned mask, int mine, int bits, int line) {
    if (mask != 0xffffffff) fail("a shuffle without all lanes");
    unsigned* in = m.fibers[m.thread].in;
    in[0] = static_cast<unsigned>(mine);
    in[1] = static_cast<unsigned>(bits);
    return static_cast<int>(*work_together(line, [](Fiber* lanes) {
        for (unsigned lane = 0; lane < WARP; ++lane) lanes[lane].out[0] = lanes[(lane ^ lanes[lane].in[1]) % WARP].in[0];
    }));
}

void ptx(int line, const char* text, const char*) {
    if (strcmp(text, "griddepcontrol.wait;") == 0) return wait_for_earlier(line);
    if (strcmp(text, "griddepcontrol.launch_dependents;") != 0) fail(text);
    if (!m.fibers[m.thread].waited && m.launch.waits == AS_WRITTEN) fail("the next kernel begins, and this one has not waited");
}

// mma.m16n8k16, by "Matrix Fragments for mma.m16n8k16 with floating point type" of the PTX ISA: register r of lane l has
// of A row l / 4 (+ 8 if r is odd), columns l % 4 * 2 and the next (+ 8 from r = 2 on); of B rows l % 4 * 2 and the next
// (+ 8 if r is 1), column l / 4; of D row l / 4 (+ 8 from r = 2 on), column l % 4 * 2 (+ 1 if r is odd).
void ptx(int line, const char* text, float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    const std::string said(text), rest = " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};";
    const bool half = said == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" + rest;
    if (!half && said != "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" + rest) fail(text);
    const unsigned registers[] = {a0, a1, a2, a3, b0, b1, word(d0), word(d1), word(d2), word(d3)};
    memcpy(m.fibers[m.thread].in, registers, sizeof registers);
    const unsigned* out = work_together(line, [half](Fiber* lanes) {
        float a[16][16], b[16][8];
        for (unsigned lane = 0; lane < WARP; ++lane) {
            for (unsigned r = 0; r < 6; ++r) {
                for (unsigned side = 0; side < 2; ++side) {
                    const unsigned bits = lanes[lane].in[r] >> 16 * side & 0xffff, pair = lane % 4 * 2 + side;
                    const float x = half ? of_half(bits) : of_bfloat(bits);
                    if (r < 4) a[lane / 4 + r % 2 * 8][pair + r / 2 * 8] = x;
                    else b[pair + (r - 4) * 8][lane / 4] = x;
                }
            }
        }
        for (unsigned lane = 0; lane < WARP; ++lane) {
            for (unsigned r = 0; r < 4; ++r) {
                const unsigned row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
                float sum = 0;
                for (unsigned k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
                lanes[lane].out[r] = word(number(lanes[lane].in[6 + r]) + sum);
            }
        }
    });
    d0 = number(out[0]);
    d1 = number(out[1]);
    d2 = number(out[2]);
    d3 = number(out[3]);
}

// How the compiler's checks say where an address is no multiple, or an index is behind an array.
struct Where {
    const char* file;
    unsigned line, column;
};

static void bad_access(const char* what, const Where* where) {
    m.fibers[m.thread].line = static_cast<int>(where->line);
    fail_so(std::string(what) + " in " + where->file);
}
}  // namespace gpu

extern "C" {
__attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(gpu::Where* where, void*) { gpu::bad_access("an address that is no multiple of what is read", where); }
__attribute__((visibility("hidden"))) void __ubsan_handle_out_of_bounds(gpu::Where* where, void*) { gpu::bad_access("an index outside of an array", where); }
}
