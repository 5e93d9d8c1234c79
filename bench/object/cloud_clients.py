"""The vendors' clients of Azure's blobs and Google Cloud Storage, and NIXL's plugin for the former, as contenders of mover.py."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import time

from mover import AZURE_ACCOUNT, AZURE_KEY, BUCKET, PART, pattern, prepare


class Client:
    """One call an object, on as many threads as may be in flight; a large object's parts on as many."""

    def __init__(self, endpoint: str, span: int) -> None:
        self.endpoint = endpoint
        self.buffer = memoryview(bytearray(span))
        self.stores: dict = {}
        self.store(1)  # makes the container

    def store(self, concurrency: int):
        if concurrency not in self.stores:
            self.stores[concurrency] = self.connect(concurrency)
        return self.stores[concurrency]

    def prepare(self, op: str, size: int, count: int) -> None:
        if op == "PUT":
            self.body = pattern(size)

    def move(self, op: str, keys: list[str], size: int, concurrency: int) -> list[float]:
        store = self.store(concurrency)
        each = concurrency if size > PART else 1

        def one(place: int) -> float:
            began = time.perf_counter()
            if op == "PUT":
                self.put(store, keys[place], each)
            else:
                self.get(store, keys[place], self.buffer[place * size : (place + 1) * size], each)
            return time.perf_counter() - began

        with concurrent.futures.ThreadPoolExecutor(concurrency) as threads:
            return list(threads.map(one, range(len(keys))))

    def got(self, place: int, size: int) -> bytes:
        return bytes(self.buffer[place * size : (place + 1) * size])


class Into(io.RawIOBase):
    """A file that is memory of the caller's."""

    def __init__(self, memory: memoryview) -> None:
        self.memory, self.place = memory, 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: len(self.memory)}[whence]
        return self.place

    def tell(self) -> int:
        return self.place

    def write(self, data) -> int:
        self.memory[self.place : self.place + len(data)] = data
        self.place += len(data)
        return len(data)


class AzureClient(Client):
    """azure-storage-blob."""

    def connect(self, concurrency: int):
        import requests
        from azure.core.exceptions import ResourceExistsError
        from azure.core.pipeline.transport import RequestsTransport
        from azure.storage.blob import ContainerClient

        session = requests.Session()
        session.mount("http://", requests.adapters.HTTPAdapter(pool_connections=concurrency, pool_maxsize=concurrency))
        container = ContainerClient(
            self.endpoint, BUCKET, credential={"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY},
            transport=RequestsTransport(session=session), max_single_put_size=PART, max_block_size=PART,
            max_single_get_size=PART, max_chunk_get_size=PART,
        )  # fmt: skip
        with contextlib.suppress(ResourceExistsError):
            container.create_container()
        return container

    def put(self, store, key: str, concurrency: int) -> None:
        store.upload_blob(key, self.body, overwrite=True, max_concurrency=concurrency)

    def get(self, store, key: str, memory: memoryview, concurrency: int) -> None:
        store.download_blob(key, max_concurrency=concurrency).readinto(Into(memory))


class GoogleClient(Client):
    """google-cloud-storage, through the JSON interface."""

    def connect(self, concurrency: int):
        import requests
        from google.api_core.exceptions import Conflict
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        client = storage.Client(
            project="bench", credentials=AnonymousCredentials(), client_options={"api_endpoint": self.endpoint}
        )
        client._http.mount("http://", requests.adapters.HTTPAdapter(pool_connections=concurrency, pool_maxsize=concurrency))
        with contextlib.suppress(Conflict):
            client.create_bucket(BUCKET)
        return client.bucket(BUCKET)

    def put(self, store, key: str, concurrency: int) -> None:
        store.blob(key).upload_from_string(self.body)

    def get(self, store, key: str, memory: memoryview, concurrency: int) -> None:
        store.blob(key).download_to_file(Into(memory))


class NixlAzure:
    """NIXL's plugin AZURE_BLOB, which stands on Azure's client for C++: one request for all objects."""

    def __init__(self, endpoint: str, span: int) -> None:
        import numpy

        self.endpoint, self.array = endpoint, numpy.zeros(span, numpy.uint8)
        self.agents: dict = {}

    def agent(self, concurrency: int):
        from nixl_cu13._api import nixl_agent, nixl_agent_config

        if concurrency not in self.agents:
            agent = nixl_agent(f"mover-{concurrency}", nixl_agent_config(enable_prog_thread=False, backends=[]))
            agent.create_backend("AZURE_BLOB", {
                "container_name": BUCKET, "num_threads": str(concurrency),
                "connection_string": f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
                f"BlobEndpoint={self.endpoint};"})  # fmt: skip
            agent.register_memory([(self.array.ctypes.data, self.array.nbytes, 0, "")], "DRAM")
            self.agents[concurrency] = agent
        return self.agents[concurrency]

    def prepare(self, op: str, size: int, count: int) -> None:
        prepare(self.array, op, size, count)

    def move(self, op: str, keys: list[str], size: int, concurrency: int) -> list[float]:
        agent = self.agent(concurrency)
        objects = agent.register_memory([(0, size, place, key) for place, key in enumerate(keys)], "OBJ")
        mine = agent.get_xfer_descs([(self.array.ctypes.data + place * size, size, 0) for place in range(len(keys))], "DRAM")
        theirs = agent.get_xfer_descs([(0, size, place) for place in range(len(keys))], "OBJ")
        handle = agent.initialize_xfer("READ" if op == "GET" else "WRITE", mine, theirs, f"mover-{concurrency}")
        state = agent.transfer(handle)
        while state == "PROC":
            time.sleep(0.0002)  # the plugin's threads move the bytes
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
        agent.deregister_memory(objects)
        return []

    def got(self, place: int, size: int) -> bytes:
        return self.array[place * size : (place + 1) * size].tobytes()
