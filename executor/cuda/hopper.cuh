/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hopper (sm_90a) instructions other than warpgroup products (hopper_products.cuh): barriers in
 * shared memory, copies by the bulk copy engine (TMA), clusters of blocks, and register
 * reallocation between warpgroups. PTX ISA, 9.7.9.25, 9.7.13.
 */
#ifndef TDM_EXECUTOR_CUDA_HOPPER_CUH
#define TDM_EXECUTOR_CUDA_HOPPER_CUH

#include "executor/cuda/hopper_products.cuh"

#include <cuda.h>

/* Threads of a warpgroup. */
#define TDM_WARPGROUP 128u

/* ---- delays, in test builds ----
 *
 * What orders threads, blocks and copies here calls tdm_delay first. With -DTDM_DELAYS
 * (tests/gpu/attention_delays_test) it makes some blocks slow, others in each millisecond: there
 * one call in eight waits for up to 16 us. Otherwise it is nothing. */
#ifdef TDM_DELAYS
static __device__ __forceinline__ uint32_t tdm_mixed(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

static __device__ __forceinline__ void tdm_delay(void)
{
    uint32_t nanoseconds, cycles;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(nanoseconds));
    asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles));
    const uint32_t chance = tdm_mixed(cycles ^ threadIdx.x / 32 << 24);
    if (tdm_mixed((nanoseconds >> 20) + blockIdx.x * 4096) % 4 == 0 && chance % 8 == 0)
        __nanosleep(chance >> 18);
}
#else
static __device__ __forceinline__ void tdm_delay(void)
{
}
#endif

/* ---- barriers ---- */

static __device__ __forceinline__ void tdm_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(tdm_shared(barrier)), "r"(arrivals)
                 : "memory");
}

static __device__ __forceinline__ void tdm_barrier_arrive(uint64_t *barrier)
{
    tdm_delay();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(tdm_shared(barrier)) : "memory");
}

static __device__ __forceinline__ void tdm_barrier_arrive_times(uint64_t *barrier, uint32_t times)
{
    tdm_delay();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(tdm_shared(barrier)),
                 "r"(times)
                 : "memory");
}

/* Arrives at the same barrier of block `block` of the cluster. */
static __device__ __forceinline__ void tdm_barrier_arrive_at(uint64_t *barrier, uint32_t block)
{
    tdm_delay();
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(tdm_shared(barrier)),
                 "r"(block)
                 : "memory");
}

/* Arrives, and makes the phase also wait for `bytes` bytes of copies. */
static __device__ __forceinline__ void tdm_barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    tdm_delay();
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(tdm_shared(barrier)),
        "r"(bytes)
        : "memory");
}

/* Call it after the barriers are initialised and before copies or other blocks of the cluster use
 * them. */
static __device__ __forceinline__ void tdm_barriers_ready(void)
{
    tdm_delay();
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Waits for the end of the barrier's phase number `phase`, counted from 0. */
static __device__ __forceinline__ void tdm_barrier_wait(uint64_t *barrier, uint32_t phase)
{
    tdm_delay();
    const uint32_t address = tdm_shared(barrier);
    uint32_t ended;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(ended)
                     : "r"(address), "r"(phase & 1)
                     : "memory");
    } while (!ended);
}

/* The same for a barrier at which other blocks of the cluster arrive. */
static __device__ __forceinline__ void tdm_barrier_wait_cluster(uint64_t *barrier, uint32_t phase)
{
    tdm_delay();
    const uint32_t address = tdm_shared(barrier);
    uint32_t ended;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(ended)
                     : "r"(address), "r"(phase & 1)
                     : "memory");
    } while (!ended);
}

/* Has that phase ended? */
static __device__ __forceinline__ bool tdm_barrier_test(uint64_t *barrier, uint32_t phase)
{
    uint32_t ended;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended)
                 : "r"(tdm_shared(barrier)), "r"(phase & 1)
                 : "memory");
    return ended != 0;
}

/* Makes this thread's writes to shared memory visible to warpgroup products and bulk copies. */
static __device__ __forceinline__ void tdm_fence_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Lets two warpgroups take turns: one waits for turn `number` (from 1) until the other gives it. */
static __device__ __forceinline__ void tdm_turn_wait(uint32_t number)
{
    tdm_delay();
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(2 * TDM_WARPGROUP) : "memory");
}

static __device__ __forceinline__ void tdm_turn_give(uint32_t number)
{
    tdm_delay();
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(2 * TDM_WARPGROUP) : "memory");
}

/* ---- registers ---- */

template <int COUNT> static __device__ __forceinline__ void tdm_take_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> static __device__ __forceinline__ void tdm_give_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---- copies by the engine: one thread issues them, a barrier counts their bytes ---- */

/* Fetches a map ahead of the first copy that uses it. */
static __device__ __forceinline__ void tdm_fetch_map(const CUtensorMap &map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/* Copies a box of a tensor of three or five dimensions. `row` is its position in the second
 * dimension, `column` in the third (in columns of 64). */
static __device__ __forceinline__ void
tdm_copy_rows(uint32_t to, const CUtensorMap &map, uint32_t row, uint32_t column, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(&map), "r"(0), "r"(row), "r"(column), "r"(tdm_shared(barrier))
                 : "memory");
}

static __device__ __forceinline__ void tdm_copy_keys(uint32_t to, const CUtensorMap &map,
                                                     uint32_t row, uint32_t column, uint32_t plane,
                                                     uint32_t slot, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
                 "l"(&map), "r"(0), "r"(row), "r"(column), "r"(plane), "r"(slot),
                 "r"(tdm_shared(barrier))
                 : "memory");
}

/* The same to both blocks of a cluster of two, at the same address and barrier in each. */
static __device__ __forceinline__ void tdm_copy_keys_to_both(uint32_t to, const CUtensorMap &map,
                                                             uint32_t row, uint32_t column,
                                                             uint32_t plane, uint32_t slot,
                                                             uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
                 "l"(&map), "r"(0), "r"(row), "r"(column), "r"(plane), "r"(slot),
                 "r"(tdm_shared(barrier)), "h"((uint16_t)3)
                 : "memory");
}

/* Copies contiguous bytes. The size and both addresses are multiples of 16. */
static __device__ __forceinline__ void tdm_copy_bytes(uint32_t to, const void *from, uint32_t bytes,
                                                      uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(tdm_shared(barrier))
                 : "memory");
}

/* Copies shared memory to global memory, or adds it to the fp32 values there. The copy joins the
 * thread's current bulk group. */
static __device__ __forceinline__ void tdm_copy_out(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void tdm_add_out(float *to, uint32_t from, uint32_t bytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
}

/* Copies a box from shared memory to fp32 sums of dK and dV, or adds it to them. `column` is in
 * columns of 32. */
static __device__ __forceinline__ void tdm_send_box(const CUtensorMap &map, uint32_t from,
                                                    uint32_t row, uint32_t column, uint32_t plane,
                                                    uint32_t slot, bool add)
{
    if (add)
        asm volatile("cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group "
                     "[%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(&map),
                     "r"(0), "r"(row), "r"(column), "r"(plane), "r"(slot), "r"(from)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
                     "[%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(&map),
                     "r"(0), "r"(row), "r"(column), "r"(plane), "r"(slot), "r"(from)
                     : "memory");
}

static __device__ __forceinline__ void tdm_out_commit(void)
{
    tdm_delay();
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until the shared memory of all but the last N bulk groups was read. */
template <int N> static __device__ __forceinline__ void tdm_out_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* Waits until all writes are complete. */
static __device__ __forceinline__ void tdm_out_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- clusters ---- */

/* Barrier for all threads of the cluster. Earlier writes are visible after it. */
static __device__ __forceinline__ void tdm_cluster_sync(void)
{
    tdm_delay();
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Writes a word in the shared memory of block `block` of the cluster. */
static __device__ __forceinline__ void tdm_cluster_store(uint32_t *word, uint32_t block,
                                                         uint32_t value)
{
    tdm_delay();
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.u32 [there], %2;\n}" ::"r"(tdm_shared(word)),
                 "r"(block), "r"(value)
                 : "memory");
}

#endif
