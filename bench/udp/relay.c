// A blind relay of UDP: each client address gets a connected socket to the upstream. Datagrams move
// by recvmmsg and sendmmsg, several to a buffer (UDP_GRO, UDP_SEGMENT). Beside it, what an edge that
// reads hellos costs more can be measured.
//
//   cc -O2 -o relay relay.c && ./relay PORT UPSTREAM_PORT
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 4, BUFFER_BYTES = 1 << 16, SLOTS = 1 << 17 };

struct flow {
    struct sockaddr_in client;
    int upstream; // 0: the slot is free
};

static struct flow flows[SLOTS];
static unsigned char buffers[BATCH][BUFFER_BYTES];
static union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } controls[BATCH];
static struct sockaddr_in names[BATCH];
static struct iovec parts[BATCH];
static struct mmsghdr messages[BATCH];

static int check(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

static int udp(void) {
    int on = 1, fd = check(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), "socket");
    check(setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on), "UDP_GRO");
    return fd;
}

static struct sockaddr_in loopback(const char *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

// Index of a client's flow, or of the free slot for it.
static uint32_t slot(const struct sockaddr_in *client) {
    uint32_t at = (client->sin_addr.s_addr * 2654435761u ^ client->sin_port * 40503u) % SLOTS;
    while (flows[at].upstream && (flows[at].client.sin_port != client->sin_port ||
                                  flows[at].client.sin_addr.s_addr != client->sin_addr.s_addr))
        at = (at + 1) % SLOTS;
    return at;
}

// Reads a batch, and sets each message's control to the size of its datagrams.
static int receive(int fd) {
    for (int n = 0; n < BATCH; n++) {
        parts[n] = (struct iovec){buffers[n], BUFFER_BYTES};
        messages[n].msg_hdr = (struct msghdr){
            .msg_name = &names[n], .msg_namelen = sizeof names[n], .msg_iov = &parts[n],
            .msg_iovlen = 1, .msg_control = &controls[n], .msg_controllen = sizeof controls[n]};
    }
    int count = recvmmsg(fd, messages, BATCH, 0, NULL);
    for (int n = 0; n < count; n++) {
        struct msghdr *head = &messages[n].msg_hdr;
        struct cmsghdr *found = CMSG_FIRSTHDR(head);
        int size = messages[n].msg_len;
        if (found && found->cmsg_type == UDP_GRO)
            memcpy(&size, CMSG_DATA(found), sizeof size);
        parts[n].iov_len = messages[n].msg_len;
        if (size == (int)messages[n].msg_len) {
            head->msg_control = NULL;
            head->msg_controllen = 0;
            continue;
        }
        uint16_t segment = size;
        head->msg_controllen = CMSG_SPACE(sizeof segment);
        head->msg_control = &controls[n];
        struct cmsghdr *cut = CMSG_FIRSTHDR(head);
        *cut = (struct cmsghdr){CMSG_LEN(sizeof segment), IPPROTO_UDP, UDP_SEGMENT};
        memcpy(CMSG_DATA(cut), &segment, sizeof segment);
    }
    return count;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    struct sockaddr_in own = loopback(argv[1]), to = loopback(argv[2]);
    int front = udp(), poll = check(epoll_create1(0), "epoll"), buffer = 4 << 20;
    setsockopt(front, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    check(bind(front, (struct sockaddr *)&own, sizeof own), "bind");
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = SLOTS}, events[64];
    check(epoll_ctl(poll, EPOLL_CTL_ADD, front, &event), "epoll_ctl");
    for (;;) {
        int ready = epoll_wait(poll, events, 64, -1);
        for (int e = 0; e < ready; e++) {
            uint32_t at = events[e].data.u32;
            int count = receive(at == SLOTS ? front : flows[at].upstream);
            if (at != SLOTS) {
                for (int n = 0; n < count; n++)
                    messages[n].msg_hdr.msg_name = &flows[at].client;
                if (count > 0)
                    sendmmsg(front, messages, count, 0);
                continue;
            }
            for (int n = 0; n < count; n++) {
                uint32_t of = slot(&names[n]);
                if (!flows[of].upstream) {
                    int upstream = udp();
                    check(connect(upstream, (struct sockaddr *)&to, sizeof to), "connect");
                    flows[of] = (struct flow){names[n], upstream};
                    event = (struct epoll_event){.events = EPOLLIN, .data.u32 = of};
                    check(epoll_ctl(poll, EPOLL_CTL_ADD, upstream, &event), "epoll_ctl");
                }
                messages[n].msg_hdr.msg_name = NULL;
                messages[n].msg_hdr.msg_namelen = 0;
                sendmmsg(flows[of].upstream, &messages[n], 1, 0);
            }
        }
    }
}
