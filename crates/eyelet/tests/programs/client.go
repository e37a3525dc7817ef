// A TLS client: echo PORT NAME CA, or http, or http2. Says `ok VERSION` when everything came back.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	mode, port, name, ca := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	pem, err := os.ReadFile(ca)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: roots, ServerName: name, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	if mode == "echo" {
		echo(config, port)
	} else if mode == "http2" {
		two(config, port, name)
	} else {
		web(config, port, name)
	}
}

func echo(config *tls.Config, port string) {
	resumed := false
	version := uint16(0)
	for range 2 {
		c, err := tls.Dial("tcp", "127.0.0.1:"+port, config)
		check(err)
		sent := make([]byte, 300000)
		for i := range sent {
			sent[i] = byte(i * 7 % 251)
		}
		go c.Write(sent)
		got := make([]byte, len(sent))
		_, err = io.ReadFull(c, got)
		check(err)
		if !bytes.Equal(sent, got) {
			check(fmt.Errorf("other bytes"))
		}
		// close_notify one way, the other side's must come back as a clean end.
		check(c.CloseWrite())
		rest, err := io.ReadAll(c)
		check(err)
		if len(rest) != 0 {
			check(fmt.Errorf("%d bytes too many", len(rest)))
		}
		resumed, version = c.ConnectionState().DidResume, c.ConnectionState().Version
		c.Close()
	}
	fmt.Println("ok", tls.VersionName(version), "resumed", resumed)
}

func client(config *tls.Config, port string) *http.Client {
	transport := &http.Transport{TLSClientConfig: config}
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
	}
	return &http.Client{Transport: transport}
}

// The first request opens the connection, and all others share it.
func two(config *tls.Config, port, name string) {
	client := client(config, port)
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	ask := func(i int) error {
		sent := strings.Repeat(string(rune('a'+i%26)), i*5000)
		url := fmt.Sprintf("https://%s/go/%d", name, i)
		r, err := client.Post(url, "text/plain", strings.NewReader(sent))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		whole := strings.HasPrefix(string(body), fmt.Sprintf("POST /go/%d ", i)) &&
			strings.HasSuffix(string(body), "\r\n\r\n"+sent)
		if !whole || r.Proto != "HTTP/2.0" {
			return fmt.Errorf("%d by %s: %d bytes", i, r.Proto, len(body))
		}
		return nil
	}
	check(ask(0))
	answers := make(chan error)
	for i := range 40 {
		go func() { answers <- ask(i) }()
	}
	for range 40 {
		check(<-answers)
	}
	fmt.Println("ok TLS, forty by HTTP/2")
}

func web(config *tls.Config, port, name string) {
	client := client(config, port)
	version := uint16(0)
	for i := range 3 {
		r, err := client.Get(fmt.Sprintf("https://%s/go/%d", name, i))
		check(err)
		body, err := io.ReadAll(r.Body)
		check(err)
		r.Body.Close()
		if !strings.Contains(string(body), fmt.Sprintf("GET /go/%d ", i)) {
			check(fmt.Errorf("%s", body))
		}
		version = r.TLS.Version
	}
	fmt.Println("ok", tls.VersionName(version))
}
