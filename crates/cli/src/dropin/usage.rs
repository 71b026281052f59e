//! Help texts of the drop-in.

/// What `-h` prints.
pub(super) const USAGE: &str = "\
Usage: nats-server [flags]

Windjet under the name nats-server: the same flags, log lines and files, one machine.
A flag's value follows it or stands behind `=`; one dash or two make no difference.

Listening
  -a, --addr, --net HOST        address for clients (default 0.0.0.0)
  -p, --port PORT               port for clients (default 4222; -1 takes a free one)
  -m, --http_port PORT          port for monitoring over HTTP
  -ms, --https_port PORT        port for monitoring over HTTPS
      --client_advertise ADDR   host:port that clients are told instead

Server
  -n, --name, --server_name N   name of the server (default: its id)
  -c, --config FILE             configuration file; flags win over it
  -t                            check the configuration file and end
  -P, --pid FILE                write the process id to this file
      --ports_file_dir DIR      write the ports in use to DIR/nats-server_PID.ports
  -sl, --signal CMD[=PID|FILE]  signal a running server: stop, quit, term, reopen, reload, ldm

Log
  -l, --log FILE                log to this file instead of standard error
      --log_size_limit BYTES    start a new file at this size
  -T, --logtime                 begin lines with the time (default true)
      --logtime_utc             times in UTC
  -D, --debug                   debug messages
  -V, --trace                   protocol messages of clients
  -VV                           protocol messages, those inside the server too
  -DV, -DVV                     -D together with -V or -VV
      --max_traced_msg_len N    most bytes of a payload shown by -V
  -s, --syslog                  accepted; the log stays where it is
  -r, --remote_syslog ADDR      accepted; the log stays where it is

JetStream
  -js, --jetstream              switch JetStream on
  -sd, --store_dir DIR          folder of the data

Who may connect
      --user NAME               name that clients must give
      --pass PASSWORD           password that clients must give
      --auth TOKEN              token that clients must give

TLS
      --tls                     demand TLS
      --tlsverify               demand TLS and a client certificate
      --tlscert FILE            certificate of the server
      --tlskey FILE             private key of the server
      --tlscacert FILE          authorities of client certificates
      --help_tls                more about TLS

Clusters (Windjet runs on one machine)
      --cluster, --cluster_name, --cluster_listen, --cluster_advertise,
      --no_advertise, --connect_retries, --profile
                                accepted, no effect
      --routes URLS             refused

  -v, --version                 show the version
  -h, --help                    show this text
";

/// What `--help_tls` prints.
pub(super) const TLS: &str = "\
TLS of the client listener is set up by flags or by the block `tls` of a configuration file:

    tls {
      cert_file: \"server-cert.pem\"   # the server's certificate, its chain behind it
      key_file:  \"server-key.pem\"    # its private key
      ca_file:   \"ca.pem\"            # authorities of client certificates
      verify:    true                # demand a client certificate
      timeout:   2                   # seconds for the handshake
    }

With `handshake_first: true` the handshake comes before the server's first line.
";
