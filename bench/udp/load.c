// A client and a server of datagrams on both sides of a relay of UDP, for the cost of the relay: its
// CPU time is read from /proc before and after.
//
//   cc -O2 -pthread -o load load.c
//   ./load bulk  RELAY_PORT SERVER_PORT PID FIRST MEGABYTES   one flow, datagrams to the client
//   ./load flows RELAY_PORT SERVER_PORT PID FIRST COUNT       flows of two datagrams each way
//
// FIRST is a file with the first datagram of a client of QUIC, which an edge must see. PID is the
// relay's. The other datagrams have headers of QUIC, and nothing else of it. Flows begin 16 at a
// time: one by one, what is measured is mostly how often the relay has to be woken.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { DATAGRAM = 1200, TRAIN = 50, WINDOW = 8, AT_ONCE = 16 };

static unsigned char first[2048];
static size_t first_bytes;
static int server;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static struct sockaddr_in loopback(const char *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

static int udp(void) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), buffer = 4 << 20, on = 1;
    struct timeval wait = {.tv_usec = 20000};
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    return fd;
}

// Answers each long header with one, and each short header with a train of datagrams.
static void *serve(void *nothing) {
    static unsigned char bytes[1 << 16], train[TRAIN * DATAGRAM], answer[DATAGRAM] = {
        0xe0, 0, 0, 0, 1, 4, 's', 'c', 'i', 'd', 8, 's', 'e', 'r', 'v', 'e', 'r', 'i', 'd', 0x44, 0x9c};
    for (int n = 0; n < TRAIN; n++)
        train[n * DATAGRAM] = 0x40;
    union { char bytes[CMSG_SPACE(2)]; struct cmsghdr align; } control;
    for (;;) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        ssize_t got = recvfrom(server, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &length);
        if (got <= 0)
            continue;
        if (bytes[0] & 0x80) {
            sendto(server, answer, sizeof answer, 0, (struct sockaddr *)&from, length);
            continue;
        }
        struct iovec part = {train, sizeof train};
        struct msghdr message = {.msg_name = &from, .msg_namelen = length, .msg_iov = &part,
                                 .msg_iovlen = 1, .msg_control = &control,
                                 .msg_controllen = sizeof control};
        struct cmsghdr *cut = CMSG_FIRSTHDR(&message);
        uint16_t size = DATAGRAM;
        *cut = (struct cmsghdr){CMSG_LEN(2), IPPROTO_UDP, UDP_SEGMENT};
        memcpy(CMSG_DATA(cut), &size, 2);
        sendmsg(server, &message, 0);
    }
    return nothing;
}

// Milliseconds of CPU that a process has used. A tick is 10 ms; schedstat has nanoseconds.
static double cpu_ms(const char *pid) {
    char command[128];
    snprintf(command, sizeof command, "cat /proc/%s/task/*/schedstat", pid);
    FILE *all = popen(command, "r");
    double sum = 0, ran, waited, turns;
    while (all && fscanf(all, "%lf %lf %lf", &ran, &waited, &turns) == 3)
        sum += ran / 1e6;
    pclose(all);
    return sum;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

// Sends the first datagram until it is answered. Returns the tries.
static int open_flow(int client) {
    static unsigned char bytes[1 << 16];
    for (int tries = 1; tries < 100; tries++) {
        send(client, first, first_bytes, 0);
        if (recv(client, bytes, sizeof bytes, 0) > 0)
            return tries;
    }
    fprintf(stderr, "no answer\n");
    exit(1);
}

// Begins so many flows at once. In each the client sends its first datagram and, after the answer,
// one of the end of a handshake, which is answered, too. Returns the tries.
static int open_flows(int *clients, int count) {
    static unsigned char bytes[1 << 16], next[] = {
        0xe0, 0, 0, 0, 1, 8, 's', 'e', 'r', 'v', 'e', 'r', 'i', 'd',
        4, 's', 'c', 'i', 'd', 4, 0, 0, 0, 0};
    int tries = count;
    for (int step = 0; step < 2; step++) {
        const unsigned char *what = step ? next : first;
        size_t length = step ? sizeof next : first_bytes;
        for (int n = 0; n < count; n++)
            send(clients[n], what, length, 0);
        for (int n = 0; n < count; n++)
            for (int again = 0; recv(clients[n], bytes, sizeof bytes, 0) <= 0; again++, tries++) {
                if (again == 100)
                    fail("no answer");
                send(clients[n], what, length, 0);
            }
    }
    return tries;
}

static void bulk(int client, double wanted) {
    static unsigned char bytes[1 << 16], more[40] = {0x40};
    double got = 0;
    int lost = 0;
    for (int n = 0; n < WINDOW; n++)
        send(client, more, sizeof more, 0);
    double part = 0;
    while (got < wanted) {
        ssize_t length = recv(client, bytes, sizeof bytes, 0);
        if (length < 0) {
            lost++; // a train, or a request for one
            for (int n = 0; n < WINDOW; n++)
                send(client, more, sizeof more, 0);
            part = 0;
            continue;
        }
        got += length;
        for (part += length; part >= TRAIN * DATAGRAM; part -= TRAIN * DATAGRAM)
            send(client, more, sizeof more, 0);
    }
    printf("%.0f MB, %d pauses", got / 1e6, lost);
}

int main(int argc, char **argv) {
    if (argc < 7)
        return 2;
    FILE *file = fopen(argv[5], "rb");
    if (!file || !(first_bytes = fread(first, 1, sizeof first, file)))
        fail(argv[5]);
    struct sockaddr_in relay = loopback(argv[2]), own = loopback(argv[3]);
    server = udp();
    if (bind(server, (struct sockaddr *)&own, sizeof own))
        fail("bind");
    pthread_t thread;
    pthread_create(&thread, NULL, serve, NULL);
    double before, began;
    if (!strcmp(argv[1], "bulk")) {
        int client = udp();
        if (connect(client, (struct sockaddr *)&relay, sizeof relay))
            fail("connect");
        open_flow(client);
        before = cpu_ms(argv[4]), began = now();
        bulk(client, atof(argv[6]) * 1e6);
        double took = now() - began, used = cpu_ms(argv[4]) - before;
        printf(", %.0f ms of CPU, %.2f s\n", used, took);
        return 0;
    }
    int count = atoi(argv[6]), tries = 0;
    before = cpu_ms(argv[4]), began = now();
    for (int n = 0; n < count; n += AT_ONCE) {
        // They stay open: another one would get its port, and be the same client.
        int clients[AT_ONCE], more = count - n < AT_ONCE ? count - n : AT_ONCE;
        for (int c = 0; c < more; c++)
            if (connect(clients[c] = udp(), (struct sockaddr *)&relay, sizeof relay))
                fail("connect");
        tries += open_flows(clients, more);
    }
    double took = now() - began, used = cpu_ms(argv[4]) - before;
    printf("%d flows, %d tries, %.1f us each, ", count, tries, used * 1000 / count);
    printf("%.0f ms of CPU, %.2f s\n", used, took);
}
