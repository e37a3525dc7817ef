// A WebSocket client: PORT CA. Says `open`, echoes one message, and says the status of the close.
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.WebSocket;
import java.nio.file.*;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.concurrent.*;
import javax.net.ssl.*;

public class Chat {
    public static void main(String[] args) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream pem = Files.newInputStream(Path.of(args[1]))) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        CompletableFuture<String> closed = new CompletableFuture<>();
        WebSocket.Listener listener = new WebSocket.Listener() {
            @Override public CompletionStage<?> onText(WebSocket socket, CharSequence text, boolean last) {
                System.out.println("text " + text);
                socket.request(1);
                return null;
            }
            @Override public CompletionStage<?> onClose(WebSocket socket, int status, String reason) {
                closed.complete("closed " + status);
                return null;
            }
            @Override public void onError(WebSocket socket, Throwable error) {
                closed.complete("failed " + error);
            }
        };
        URI to = URI.create("wss://app.test:" + args[0] + "/chat");
        WebSocket socket = HttpClient.newBuilder().sslContext(context).build()
            .newWebSocketBuilder().buildAsync(to, listener).get(60, TimeUnit.SECONDS);
        System.out.println("open");
        socket.sendText("Hello", true).get(60, TimeUnit.SECONDS);
        System.out.println(closed.get(60, TimeUnit.SECONDS));
    }
}
