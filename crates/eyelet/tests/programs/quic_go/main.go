// A QUIC server and client by quic-go: what a client asks for is a number of bytes.
//
//	quic_go serve CERTIFICATE KEY [p384] [at=ADDRESS]
//	    prints its port and who connects, and serves until its input ends; a client of HTTP/3 gets
//	    a page
//	quic_go ask PORT|ADDRESS NAME BYTES CA
//	    prints what came as JSON: bytes, or the error's code
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// The protocol that the program by aioquic has, too.
const alpn = "eyelet-test"

const patience = 30 * time.Second

func main() {
	if os.Args[1] == "serve" {
		serve(os.Args[2], os.Args[3], os.Args[4:])
		return
	}
	said, _ := json.Marshal(ask(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
	fmt.Println(string(said))
}

func serve(certificate, key string, options []string) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	check(err)
	config := &tls.Config{
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{alpn, http3.NextProtoH3},
	}
	if slices.Contains(options, "p384") {
		// No client sends a share of it in its first hello.
		config.CurvePreferences = []tls.CurveID{tls.CurveP384}
	}
	address := "127.0.0.1:0"
	for _, option := range options {
		if at, ok := strings.CutPrefix(option, "at="); ok {
			address = at
		}
	}
	listener, err := quic.ListenAddr(address, config, nil)
	check(err)
	go func() {
		for {
			connection, err := listener.Accept(context.Background())
			check(err)
			fmt.Println("from", connection.RemoteAddr())
			go answer(connection)
		}
	}()
	fmt.Println(listener.Addr().(*net.UDPAddr).Port)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func answer(connection *quic.Conn) {
	if connection.ConnectionState().TLS.NegotiatedProtocol != alpn {
		page := func(to http.ResponseWriter, from *http.Request) {
			fmt.Fprintf(to, "<p>%s by %s</p>", from.Host, from.Proto)
		}
		server := http3.Server{Handler: http.HandlerFunc(page)}
		_ = server.ServeQUICConn(connection)
		return
	}
	for {
		stream, err := connection.AcceptStream(context.Background())
		if err != nil {
			return
		}
		asked, _ := io.ReadAll(stream)
		count, _ := strconv.Atoi(string(asked))
		_, _ = stream.Write(make([]byte, count))
		_ = stream.Close()
	}
}

func ask(to, name, count, authorities string) map[string]any {
	if !strings.Contains(to, ":") {
		to = "127.0.0.1:" + to
	}
	trusted := x509.NewCertPool()
	text, err := os.ReadFile(authorities)
	check(err)
	trusted.AppendCertsFromPEM(text)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	config := &tls.Config{ServerName: name, NextProtos: []string{alpn}, RootCAs: trusted}
	connection, err := quic.DialAddr(ctx, to, config, nil)
	if err != nil {
		return failed(err)
	}
	stream, err := connection.OpenStreamSync(ctx)
	check(err)
	_, err = stream.Write([]byte(count))
	check(err)
	check(stream.Close())
	bytes, err := io.Copy(io.Discard, stream)
	check(err)
	_ = connection.CloseWithError(0, "")
	state := connection.ConnectionState().TLS
	return map[string]any{
		"bytes": bytes, "group": state.CurveID.String(), "retried": state.HelloRetryRequest,
	}
}

func failed(err error) map[string]any {
	said := map[string]any{"bytes": 0, "error": err.Error()}
	var transport *quic.TransportError
	if errors.As(err, &transport) && transport.Remote {
		said["code"] = uint64(transport.ErrorCode)
	}
	return said
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
