/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Code of attach-victim that keeps all of a thread's state in registers, so that a change by an attach shows.
 *
 * In:  rdi = 32 vectors of 64 bytes, rsi = where to store them again, rdx = iterations, ecx = 1 with AVX-512.
 * Out: rax = 0, or the number of the check that failed.
 */
    .text
    .macro each_ymm op
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    \op \n
    .endr
    .endm
    .macro each_zmm op
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    \op \n
    .endr
    .endm
    .macro load_ymm n
    vmovdqu 64*\n(%rdi), %ymm\n
    .endm
    .macro store_ymm n
    vmovdqu %ymm\n, 64*\n(%rsi)
    .endm
    .macro load_zmm n
    vmovdqu64 64*\n(%rdi), %zmm\n
    .endm
    .macro store_zmm n
    vmovdqu64 %zmm\n, 64*\n(%rsi)
    .endm
    .macro expect number, register, value
    movabs $\value, %rdx
    mov $\number, %ecx
    cmp %rdx, \register
    jne 9f
    .endm

    .globl victim_vector_spin
    .type victim_vector_spin, @function
victim_vector_spin:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    push %rsi
    push %rcx
    sub $24, %rsp
    /* x87: three values on its stack, and a control word of our own; SSE: round towards zero */
    fstcw (%rsp)
    fldpi
    fldl2e
    fld1
    movw $0x0e7f, 2(%rsp)
    fldcw 2(%rsp)
    stmxcsr 4(%rsp)
    movl $0x7f80, 8(%rsp)
    ldmxcsr 8(%rsp)
    test %ecx, %ecx
    jz 1f
    each_zmm load_zmm
    kmovq (%rdi), %k1
    kmovq 64(%rdi), %k7
    jmp 2f
1:  each_ymm load_ymm
2:  /* the red zone */
    movabs $0x1122334455667788, %rax
    mov %rax, -8(%rsp)
    mov %rax, -64(%rsp)
    mov %rax, -128(%rsp)
    movabs $0xa0a1a2a3a4a5a6a7, %rax
    movabs $0xb0b1b2b3b4b5b6b7, %rbx
    movabs $0xc0c1c2c3c4c5c6c7, %rbp
    movabs $0x0808080808080808, %r8
    movabs $0x0909090909090909, %r9
    movabs $0x1010101010101010, %r10
    movabs $0x1111111111111110, %r11
    movabs $0x1212121212121212, %r12
    movabs $0x1313131313131313, %r13
    movabs $0x1414141414141414, %r14
    movabs $0x1515151515151515, %r15
    movabs $0x6666666666666666, %rcx
    std
    stc
3:  lea -1(%rdx), %rdx
    xchg %rcx, %rdx
    jrcxz 4f
    xchg %rcx, %rdx
    jmp 3b
4:  /* carry and direction flag are still set; rdx and rcx have changed places */
    mov $1, %ecx
    jnc 8f
    cld
    mov %rdx, %rcx
    movabs $0x6666666666666666, %rdx
    cmp %rdx, %rcx
    mov $2, %ecx
    jne 9f
    expect 3, %rax, 0xa0a1a2a3a4a5a6a7
    expect 4, %rbx, 0xb0b1b2b3b4b5b6b7
    expect 5, %rbp, 0xc0c1c2c3c4c5c6c7
    expect 6, %r8, 0x0808080808080808
    expect 7, %r9, 0x0909090909090909
    expect 8, %r10, 0x1010101010101010
    expect 9, %r11, 0x1111111111111110
    expect 10, %r12, 0x1212121212121212
    expect 11, %r13, 0x1313131313131313
    expect 12, %r14, 0x1414141414141414
    expect 13, %r15, 0x1515151515151515
    mov -8(%rsp), %rax
    expect 14, %rax, 0x1122334455667788
    mov -64(%rsp), %rax
    expect 15, %rax, 0x1122334455667788
    mov -128(%rsp), %rax
    expect 16, %rax, 0x1122334455667788
    xor %ecx, %ecx
    jmp 9f
8:  cld
9:  /* ecx = verdict so far */
    mov %ecx, %eax
    mov 24(%rsp), %rcx
    mov 32(%rsp), %rsi
    test %ecx, %ecx
    jz 1f
    each_zmm store_zmm
    kmovq %k1, 2048(%rsi)
    kmovq %k7, 2056(%rsi)
    jmp 2f
1:  each_ymm store_ymm
2:  vzeroupper
    stmxcsr 8(%rsp)
    cmpl $0x7f80, 8(%rsp)
    je 1f
    mov $17, %eax
1:  fstcw 2(%rsp)
    cmpw $0x0e7f, 2(%rsp)
    je 1f
    mov $18, %eax
1:  fldcw (%rsp) /* constants are rounded as the control word says: compare as loaded */
    fld1
    fcomip %st(1), %st
    fstp %st(0)
    je 1f
    mov $19, %eax
1:  fldl2e
    fcomip %st(1), %st
    fstp %st(0)
    je 1f
    mov $20, %eax
1:  fstp %st(0)
    ldmxcsr 4(%rsp)
    add $24, %rsp
    pop %rcx
    pop %rsi
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret
    .size victim_vector_spin, . - victim_vector_spin

/*
 * A restartable sequence that does nothing for rsi iterations but look whether the kernel still knows of it.
 * rdi = struct rseq. Returns 0 if it ended, 1 if it was aborted, 2 if it was interrupted without being aborted.
 */
    .globl victim_rseq_spin
    .type victim_rseq_spin, @function
victim_rseq_spin:
    lea victim_rseq_cs(%rip), %rax
    mov %rax, 8(%rdi)
.Lstart:
    cmp %rax, 8(%rdi)
    jne .Lmissed
    sub $1, %rsi
    jnz .Lstart
    movq $0, 8(%rdi)
.Lend:
    xor %eax, %eax
    ret
.Lmissed:
    mov $2, %eax
    ret
    .byte 0x0f, 0xb9, 0x3d /* ud1 with the signature as its operand */
    .long 0x53053053
.Labort:
    mov $1, %eax
    ret
    .size victim_rseq_spin, . - victim_rseq_spin

    .section .data.rel.local, "aw"
    .balign 32
victim_rseq_cs:
    .long 0, 0
    .quad .Lstart, .Lend - .Lstart, .Labort
    .section .note.GNU-stack, "", @progbits
