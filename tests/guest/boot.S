/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The test guest: a bootable image of eight sectors that needs nothing but a PC's BIOS.
 *
 * It goes from real mode to flat 32-bit mode, prints 'A' on COM1, once in its life, and then counts: after each turn of
 * its main loop it prints the next letter, B to Z and B again. The output of a guest that was moved, source first, is
 * therefore one unbroken sequence; a second A is a guest that started anew, a gap or a repetition one that ran twice.
 *
 * In a turn it does what `mode` asks for. It reads `mode` from memory in each turn, so a test may change it through the
 * file behind the guest's RAM, at 0x7c0c, while nothing tracks the guest.
 *   SWEEP  writes the number of the sweep to the first and last dword of each 4 KiB page from `first` to `last`, after
 *          it has checked that they still hold the number before: a page that a migration lost makes it print '!'.
 *   HIGH   the same above 4 GiB, from `high_first` on, through a window of 4 MiB pages (PSE-36).
 *   ZERO   fills `first` to `last` with zeroes, once, and clears SWEEP and ZERO.
 *   DISK   keeps `depth` reads of random 4 KiB of a virtio-blk disk in flight into random pages from `disk_first` to
 *          `disk_last`. The processor never touches these pages: only the device writes them. A bad read prints '?'.
 *   DISK | WRITE   writes instead, with `depth` 1: write number n puts n into the first and last dword of page n % 64 of
 *          the disk, so that the disk tells which of the writes that were completed (`reads`) it has.
 *   POWEROFF, RESET   what they say, by ACPI as SeaBIOS sets it up on QEMU's `pc`, and by the keyboard controller.
 * With none of them it sleeps, and prints a letter every 10 ms. `pace` is the number of 10 ms ticks to sleep in a turn;
 * with 0 a busy guest is busy all the time. With DISK alone, a turn's letter appears after each `batch` reads.
 *
 * Memory: 0x7c00 this image; stack below; 0x9000 interrupt table; 0x10000 page directory; 0x20000 virtio ring;
 * 0x30000 request headers; 0x31000 request status bytes; 0x32000 page to be written; 0x100000 on: windows.
 */

#define COM1 0x3f8
#define IDT 0x9000
#define DIRECTORY 0x10000
#define RING 0x20000
#define HEADERS 0x30000
#define STATUSES 0x31000
#define WRITTEN 0x32000
#define HIGH_WINDOW 0x80000000
#define DEPTH_MAX 32

#define SWEEP 1
#define HIGH 2
#define ZERO 4
#define DISK 8
#define POWEROFF 16
#define RESET 32
#define WRITE 64

        .code16
        .globl _start
_start:
        jmp     start
        .org    8

/* PARAMETERS: byte 8 of the image, physical address 0x7c08; all little-endian dwords. */
magic:          .ascii "rmg1"
mode:           .long SWEEP             /* 0x0c */
first:          .long 0x100000          /* 0x10 */
last:           .long 0x6500000         /* 0x14: 100 MiB */
pace:           .long 0                 /* 0x18 */
high_first:     .long 0                 /* 0x1c: MiB, a multiple of 4 */
high_size:      .long 0                 /* 0x20: MiB, a multiple of 4, up to 1024 */
disk_first:     .long 0x8000000         /* 0x24 */
disk_last:      .long 0xc000000         /* 0x28 */
depth:          .long 8                 /* 0x2c: 1 to DEPTH_MAX */
batch:          .long 1                 /* 0x30 */
/* Written by the guest. */
sweeps:         .long 0                 /* 0x34 */
reads:          .long 0                 /* 0x38 */
faults:         .long 0                 /* 0x3c: pages found with a wrong number, failed reads */

start:
        cli
        cld
        ljmp    $0, $1f                 /* some BIOSes enter at 07c0:0000 */
1:      xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movw    $0x7c00, %sp
        movw    $0x0207, %ax            /* read the other 7 sectors: cylinder 0, head 0, sector 2 on, from dl */
        movw    $0x7e00, %bx
        movw    $0x0002, %cx
        movb    $0, %dh
        sti
        int     $0x13
        cli
        jc      dead
        lgdt    gdt_pointer
        movl    %cr0, %eax
        orb     $1, %al
        movl    %eax, %cr0
        ljmp    $8, $flat
dead:   hlt
        jmp     dead

gdt:    .quad 0
        .quad 0x00cf9a000000ffff        /* code, 4 GiB */
        .quad 0x00cf92000000ffff        /* data, 4 GiB */
gdt_pointer:
        .word . - gdt - 1
        .long gdt

        .org    510
        .word   0xaa55

        .code32
flat:
        movw    $16, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movl    $0x7c00, %esp
        call    setup_timer
        call    setup_paging
        call    setup_disk
        call    mark                    /* the only A */

turn:
        testl   $POWEROFF | RESET, mode
        jnz     end
        testl   $SWEEP | HIGH, mode
        jz      2f
        call    sweep_all
2:      testl   $ZERO, mode
        jz      3f
        call    zero
3:      testl   $DISK, mode
        jz      4f
        call    poll_disk
4:      movl    pace, %ecx
        testl   $SWEEP | HIGH | DISK, mode
        jnz     5f
        cmpl    $1, %ecx                /* idle: at least one tick, or the letters would flood */
        adcl    $0, %ecx
5:      jecxz   7f
6:      sti
        hlt                             /* one tick; sti holds interrupts off until hlt has begun */
        cli
        loop    6b
7:      movl    mode, %eax
        andl    $SWEEP | HIGH | DISK, %eax
        cmpl    $DISK, %eax
        jne     8f
        movl    reads, %eax             /* disk alone: a letter for each batch */
        subl    marked, %eax
        cmpl    batch, %eax
        jb      9f
        movl    reads, %eax
        movl    %eax, marked
8:      call    mark
9:      pause
        jmp     turn

end:
        testl   $RESET, mode
        jnz     1f
        movw    $0x604, %dx             /* PM1a control: sleep enable, type 0 */
        movw    $0x2000, %ax
        outw    %ax, %dx
        jmp     2f
1:      movb    $0xfe, %al              /* pulse the reset line */
        outb    %al, $0x64
2:      hlt
        jmp     2b

/* Prints the next letter. */
mark:
        movb    letter, %al
        call    put
        incb    letter
        cmpb    $'Z' + 1, letter
        jne     1f
        movb    $'B', letter
1:      ret

/* Prints al. */
put:
        movb    %al, %ah
        movw    $COM1 + 5, %dx
1:      inb     %dx, %al
        testb   $0x20, %al
        jz      1b
        movb    %ah, %al
        movw    $COM1, %dx
        outb    %al, %dx
        ret

/* ---- memory ---- */

sweep_all:
        testl   $SWEEP, mode
        jz      1f
        movl    first, %edi
        movl    last, %esi
        call    sweep
1:      testl   $HIGH, mode
        jz      2f
        movl    $HIGH_WINDOW, %edi
        movl    high_size, %esi
        shll    $20, %esi
        addl    %edi, %esi
        call    sweep
2:      incl    expected
        incl    sweeps
        ret

/* One sweep of the pages from edi to esi. The first one writes without a check: the BIOS may have been there. */
sweep:
        movl    expected, %eax
        leal    1(%eax), %edx
        testl   %eax, %eax
        jz      3f
1:      cmpl    %esi, %edi
        jae     4f
        cmpl    %eax, (%edi)
        jne     2f
        cmpl    %eax, 4092(%edi)
        jne     2f
        movl    %edx, (%edi)
        movl    %edx, 4092(%edi)
        addl    $4096, %edi
        jmp     1b
2:      incl    faults
        pushl   %eax
        pushl   %edx
        movb    $'!', %al
        call    put
        popl    %edx
        popl    %eax
        movl    %edx, (%edi)
        movl    %edx, 4092(%edi)
        addl    $4096, %edi
        jmp     1b
3:      cmpl    %esi, %edi
        jae     4f
        movl    %edx, (%edi)
        movl    %edx, 4092(%edi)
        addl    $4096, %edi
        jmp     3b
4:      ret

zero:
        movl    first, %edi
        movl    last, %ecx
        subl    %edi, %ecx
        shrl    $2, %ecx
        xorl    %eax, %eax
        rep stosl
        movl    %eax, expected
        andl    $~(ZERO | SWEEP), mode
        ret

/* Identity-mapped 4 MiB pages, and at HIGH_WINDOW the memory from high_first on. */
setup_paging:
        cmpl    $0, high_size
        je      3f
        movl    $DIRECTORY, %edi
        movl    $0x83, %eax             /* present, writable, 4 MiB */
        movl    $1024, %ecx
1:      stosl
        addl    $0x400000, %eax
        loop    1b
        movl    $DIRECTORY + (HIGH_WINDOW >> 22) * 4, %edi
        movl    high_first, %ebx
        shrl    $2, %ebx                /* number of the 4 MiB frame */
        movl    high_size, %ecx
        shrl    $2, %ecx
2:      movl    %ebx, %eax              /* address bits 31–22 in place, 35–32 in bits 16–13 */
        shll    $22, %eax
        movl    %ebx, %edx
        shrl    $10, %edx
        shll    $13, %edx
        orl     %edx, %eax
        orl     $0x83, %eax
        stosl
        incl    %ebx
        loop    2b
        movl    %cr4, %eax
        orl     $0x10, %eax             /* PSE */
        movl    %eax, %cr4
        movl    $DIRECTORY, %eax
        movl    %eax, %cr3
        movl    %cr0, %eax
        orl     $0x80000000, %eax
        movl    %eax, %cr0
3:      ret

/* ---- time ---- */

/* The interval timer at 100 Hz on interrupt 8, where the BIOS left it, and no other interrupt. */
setup_timer:
        movl    $IDT + 8 * 8, %edi
        movl    $tick, %eax
        movw    %ax, (%edi)
        movl    $0x8e000008, 2(%edi)    /* selector 8, interrupt gate */
        shrl    $16, %eax
        movw    %ax, 6(%edi)
        lidt    idt_pointer
        movb    $0x34, %al              /* channel 0, rate generator */
        outb    %al, $0x43
        movb    $(11932 & 0xff), %al
        outb    %al, $0x40
        movb    $(11932 >> 8), %al
        outb    %al, $0x40
        movb    $0xfe, %al
        outb    %al, $0x21
        movb    $0xff, %al
        outb    %al, $0xa1
        ret

tick:
        pushl   %eax
        movb    $0x20, %al
        outb    %al, $0x20
        popl    %eax
        iret

/* ---- virtio-blk, legacy PCI, polled ---- */

setup_disk:
        testl   $DISK, mode
        jz      3f
        movl    $0x80000000, %ebx       /* bus 0, device 0, register 0 */
        movl    $32, %ecx
1:      movl    %ebx, %eax
        call    pci_read
        cmpl    $0x10011af4, %eax
        je      2f
        addl    $0x800, %ebx
        loop    1b
        andl    $~DISK, mode            /* no such disk */
        movb    $'?', %al
        jmp     put
2:      leal    4(%ebx), %eax           /* command: I/O, memory, bus master */
        call    pci_read
        andl    $0xffff, %eax
        orl     $7, %eax
        outl    %eax, %dx
        leal    0x10(%ebx), %eax
        call    pci_read
        andl    $~3, %eax
        movl    %eax, disk_port
        movl    $RING, %edi
        movl    $(HEADERS - RING) / 4, %ecx
        xorl    %eax, %eax
        rep stosl
        movw    $0x12, %cx              /* status: reset; acknowledge; driver */
        movb    $0, %al
        call    disk_out8
        movb    $1, %al
        call    disk_out8
        movb    $3, %al
        call    disk_out8
        movl    disk_port, %edx
        addl    $4, %edx
        xorl    %eax, %eax
        outl    %eax, %dx               /* no features */
        addl    $0x0e - 4, %edx
        outw    %ax, %dx                /* queue 0 */
        subl    $2, %edx
        inw     %dx, %ax
        movzwl  %ax, %eax
        movl    %eax, queue_size
        movl    %eax, %ebx
        shll    $4, %ebx
        addl    $RING, %ebx
        movl    %ebx, avail
        movw    $1, (%ebx)              /* no interrupts, please */
        leal    6 + 4095(%ebx, %eax, 2), %ebx
        andl    $~4095, %ebx
        movl    %ebx, used
        movl    disk_port, %edx
        addl    $8, %edx
        movl    $RING >> 12, %eax
        outl    %eax, %dx
        addl    $0x14 - 8, %edx
        inl     %dx, %eax               /* capacity in sectors, up to 2 TiB */
        shrl    $3, %eax
        movl    %eax, disk_pages
        movw    $0x12, %cx
        movb    $7, %al                 /* driver ok */
        call    disk_out8
        xorl    %ebx, %ebx
4:      call    submit
        incl    %ebx
        cmpl    depth, %ebx
        jb      4b
3:      ret

/* Reads configuration address eax into eax; leaves dx at the data port. */
pci_read:
        movw    $0xcf8, %dx
        outl    %eax, %dx
        movw    $0xcfc, %dx
        inl     %dx, %eax
        ret

/* Writes al to the disk's register cx. */
disk_out8:
        movl    disk_port, %edx
        addw    %cx, %dx
        outb    %al, %dx
        ret

/* eax: a random number below ecx. */
random:
        movl    seed, %eax              /* xorshift32 */
        movl    %eax, %edx
        shll    $13, %edx
        xorl    %edx, %eax
        movl    %eax, %edx
        shrl    $17, %edx
        xorl    %edx, %eax
        movl    %eax, %edx
        shll    $5, %edx
        xorl    %edx, %eax
        movl    %eax, seed
        xorl    %edx, %edx
        divl    %ecx
        movl    %edx, %eax
        ret

/* Starts a read in slot ebx: descriptors 3 ebx (header), + 1 (page), + 2 (status). */
submit:
        movl    %ebx, %esi
        shll    $4, %esi
        addl    $HEADERS, %esi
        movl    disk_pages, %ecx
        call    random
        shll    $3, %eax
        movl    $0, (%esi)              /* type: in */
        movl    $0, 4(%esi)
        movl    %eax, 8(%esi)           /* sector */
        movl    $0, 12(%esi)
        leal    (%ebx, %ebx, 2), %ebp
        movl    %ebp, %edi
        shll    $4, %edi
        addl    $RING, %edi
        movl    %esi, (%edi)
        movl    $16, 8(%edi)
        leal    1(%ebp), %eax
        movw    $1, 12(%edi)            /* next */
        movw    %ax, 14(%edi)
        movl    disk_last, %ecx
        subl    disk_first, %ecx
        shrl    $12, %ecx
        call    random
        shll    $12, %eax
        addl    disk_first, %eax
        movl    %eax, 16(%edi)
        movl    $4096, 24(%edi)
        leal    2(%ebp), %eax
        movw    $3, 28(%edi)            /* next, device writes */
        movw    %ax, 30(%edi)
        leal    STATUSES(%ebx), %eax
        movb    $0xff, (%eax)
        movl    %eax, 32(%edi)
        movl    $1, 40(%edi)
        movl    $2, 44(%edi)            /* device writes; no next */
        testl   $WRITE, mode
        jz      1f
        movl    $1, (%esi)              /* type: out */
        incl    writes
        movl    writes, %eax
        movl    %eax, WRITTEN
        movl    %eax, WRITTEN + 4092
        andl    $63, %eax
        shll    $3, %eax
        movl    %eax, 8(%esi)
        movl    $WRITTEN, 16(%edi)
        movw    $1, 28(%edi)            /* next; device reads */
1:
        movl    avail, %esi
        movzwl  2(%esi), %eax
        movl    queue_size, %ecx
        decl    %ecx
        andl    %eax, %ecx
        movw    %bp, 4(%esi, %ecx, 2)
        incw    %ax
        movw    %ax, 2(%esi)            /* x86 keeps the order of the two writes */
        movl    disk_port, %edx
        addl    $0x10, %edx
        xorl    %eax, %eax
        outw    %ax, %dx
        ret

poll_disk:
        movl    used, %esi
        movzwl  used_seen, %eax
        cmpw    2(%esi), %ax
        je      3f
        movl    queue_size, %ecx
        decl    %ecx
        andl    %eax, %ecx
        movl    4(%esi, %ecx, 8), %eax  /* first descriptor of the chain */
        incw    used_seen
        incl    reads
        xorl    %edx, %edx
        movl    $3, %ecx
        divl    %ecx
        movl    %eax, %ebx
        cmpb    $0, STATUSES(%ebx)
        je      2f
        incl    faults
        movb    $'?', %al
        call    put
2:      call    submit
        jmp     poll_disk
3:      ret

/* ---- data ---- */

        .balign 4
idt_pointer:
        .word   9 * 8 - 1
        .long   IDT
        .balign 4
expected:       .long 0
marked:         .long 0
seed:           .long 0x2545f491
disk_port:      .long 0
writes:         .long 0
disk_pages:     .long 0
queue_size:     .long 0
avail:          .long 0
used:           .long 0
used_seen:      .word 0
letter:         .byte 'A'

        .org    4096
