/* SPDX-License-Identifier: Apache-2.0 */
/* How fail_calls gets the stack of a system call. It skips the call and sends TDM_TELL_STACK. The
 * preloaded fail_allocation.so tells the digest of the stack as the argument of a system call
 * TDM_TOLD_STACK, which does not exist, and goes back to the instruction of the skipped call. */
#ifndef TDM_TESTS_TOLD_STACK_H
#define TDM_TESTS_TOLD_STACK_H

#define TDM_TELL_STACK 63     /* a real-time signal that nobody else uses */
#define TDM_TOLD_STACK 100000 /* the number of no system call */
#define TDM_SYSCALL_BYTES 2   /* of an x86-64 instruction `syscall` */

#endif
