"""A Kafka broker for tests: one process in KRaft mode, on free ports, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE
from tests.support.servers.cache import NotAvailableError, jars

_JAVA = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=2
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class KafkaServer:
    """Started by `start`, which may be called again after `stop` or `kill`: topics and offsets are kept."""

    def __init__(self) -> None:
        java = shutil.which("java")
        if java is None:
            raise NotAvailableError("there is no java to run a Kafka broker with")
        self._command = [java, *_JAVA, "-cp", os.pathsep.join(map(str, jars("broker")))]
        self._folder = Path(tempfile.mkdtemp(prefix="cairn-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._settings = self._folder / "server.properties"
        self._settings.write_text(
            _SETTINGS.format(port=self.port, controller=free_port(), data=self._folder / "data").strip()
        )
        done = subprocess.run(
            [*self._command, "kafka.tools.StorageTool", "format", "-t", "y0Xy3lPvTFCwbUYJkaTXpQ", "-c", self._settings],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NotAvailableError(f"Kafka's storage cannot be made: {done.stdout}{done.stderr}")

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "kafka.Kafka", str(self._settings)], stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            if self._answers():
                return
            time.sleep(0.2)
        self.kill()
        raise NotAvailableError(f"the Kafka broker does not come up: {(self._folder / 'log').read_text()[-2000:]}")

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "socket.timeout.ms": 1000})
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def kill(self) -> None:
        """End the broker by force."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def create(self, topic: str, partitions: int = 2) -> str:
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE)
        return topic

    def send(self, topic: str, values: list[str], key: str | None = None) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "log_level": 0})
        for value in values:
            producer.produce(topic, value.encode(), None if key is None else key.encode())
        assert producer.flush(PATIENCE) == 0

    def abandon(self, topic: str, value: str) -> None:
        """Send a record in a transaction that is taken back."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "transactional.id": "abandoned", "log_level": 0})
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        producer.produce(topic, value.encode())
        producer.flush(PATIENCE)
        producer.abort_transaction(PATIENCE)

    def read(self, topic: str, committed: bool = True) -> list[tuple[bytes | None, bytes | None, dict[str, str]]]:
        """All records (key, value, headers) of a topic, partition by partition; `committed`: as a careful reader."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "log_level": 0,
            }
        )
        try:
            count = len(consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, 0) for number in range(count)])
            found: list[tuple[int, bytes | None, bytes | None, dict[str, str]]] = []
            ended: set[int] = set()
            while len(ended) < count:
                message: Any = consumer.poll(PATIENCE)
                assert message is not None, f"nothing more comes from topic {topic}"
                if message.error():
                    ended.add(message.partition())
                    continue
                headers = {name: value.decode() for name, value in message.headers() or []}
                found.append((message.partition(), message.key(), message.value(), headers))
            return [record[1:] for record in sorted(found, key=lambda record: record[0])]
        finally:
            consumer.close()
