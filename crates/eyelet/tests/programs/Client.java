// A TLS client: echo PORT NAME CA, or http. Says `ok VERSION` when everything came back.
import java.io.*;
import java.net.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.*;
import javax.net.ssl.*;

public class Client {
    public static void main(String[] args) throws Exception {
        String mode = args[0], name = args[2];
        int port = Integer.parseInt(args[1]);
        SSLSocket socket = connect(port, name, args[3]);
        String version = socket.getSession().getProtocol();
        if (mode.equals("echo")) {
            echo(socket);
        } else {
            web(socket, name);
        }
        socket.close();
        System.out.println("ok " + version);
    }

    static SSLSocket connect(int port, String name, String ca) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream pem = Files.newInputStream(Path.of(ca))) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        Socket raw = new Socket("127.0.0.1", port);
        raw.setSoTimeout(20000);
        SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket(raw, name, port, true);
        SSLParameters parameters = socket.getSSLParameters();
        parameters.setServerNames(List.of(new SNIHostName(name)));
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
        socket.setSSLParameters(parameters);
        socket.startHandshake();
        return socket;
    }

    static void echo(SSLSocket socket) throws Exception {
        byte[] sent = new byte[300000];
        for (int i = 0; i < sent.length; i++) sent[i] = (byte) (i * 7 % 251);
        Thread writer = new Thread(() -> {
            try {
                socket.getOutputStream().write(sent);
                socket.getOutputStream().flush();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        });
        writer.start();
        byte[] got = socket.getInputStream().readNBytes(sent.length);
        writer.join();
        if (!Arrays.equals(sent, got)) throw new IOException("other bytes, " + got.length);
        socket.shutdownOutput();
        if (socket.getInputStream().read() != -1) throw new IOException("no clean end");
    }

    static void web(SSLSocket socket, String name) throws Exception {
        for (int i = 0; i < 3; i++) {
            String head = "GET /java/" + i + " HTTP/1.1\r\nHost: " + name + "\r\n\r\n";
            socket.getOutputStream().write(head.getBytes(StandardCharsets.US_ASCII));
            DataInputStream in = new DataInputStream(socket.getInputStream());
            int length = 0;
            for (String line = line(in); !line.isEmpty(); line = line(in)) {
                if (line.toLowerCase().startsWith("content-length:")) length = Integer.parseInt(line.substring(15).trim());
            }
            String body = new String(in.readNBytes(length), StandardCharsets.US_ASCII);
            if (!body.contains("GET /java/" + i + " ")) throw new IOException(body);
        }
    }

    static String line(DataInputStream in) throws IOException {
        StringBuilder line = new StringBuilder();
        for (int c = in.read(); c != '\n'; c = in.read()) {
            if (c < 0) throw new EOFException();
            if (c != '\r') line.append((char) c);
        }
        return line.toString();
    }
}
