// A TLS client: echo PORT NAME CA, or http. Says `ok VERSION` when everything came back.
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

func web(config *tls.Config, port, name string) {
	transport := &http.Transport{TLSClientConfig: config}
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
	}
	client := &http.Client{Transport: transport}
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
